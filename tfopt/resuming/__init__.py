"""Training that survives: checkpoints from which a training goes on exactly where it was.

``tfopt.resume`` is in ``callback``. This package is not called ``resume``, since a module of that
name would hide the function.
"""
