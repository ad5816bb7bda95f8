"""Commands of ``tfopt`` that have a file of their own: each adds its parser and runs itself.

Guarantees: importing one loads nothing heavy, so that every ``--help`` answers at once.
"""
