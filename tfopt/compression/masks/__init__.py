"""Pruning: which weights are zero, when, and what keeps them so."""
