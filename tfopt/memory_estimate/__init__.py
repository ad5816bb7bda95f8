"""How much memory a training step takes: ``liveness`` runs a traced graph on paper, ``estimate``
adds what is there all the time.
"""
