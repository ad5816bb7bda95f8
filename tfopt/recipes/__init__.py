"""Run a recipe: each file is a job, a chain and a main guard."""
