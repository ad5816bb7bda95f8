"""Runnable recipes: each file is a Job factory, a chain, and a main guard."""
