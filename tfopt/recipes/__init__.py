"""Run a recipe: each file is a job, a chain and a main guard.

``python -m tfopt.recipes.NAME`` searches for what trains the job fastest on this machine, then
measures that, and what makes the model small, beside the job as it is.
"""
