"""A run that a test hands to one method of one transform."""

from tfopt import chain
from tfopt.job import Facts, Run

KNOWN = {
    "replicas": 1,
    "batch_size": 16,
    "tuned_batch_size": 16,
    "steps_per_epoch": None,
    "epochs": 1,
    "seed": 0,
}


def run_of(transform, data=None, **facts):
    """Return a run in which this transform acts."""
    run = Run(None, chain(transform))
    run.data, run.facts = data, Facts(**{**KNOWN, **facts})
    assert next(run.acting()) is transform
    return run


def effect_of(run):
    """Return what the transform said."""
    ((_, effect),) = run.effects
    return effect
