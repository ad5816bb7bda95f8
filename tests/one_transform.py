"""An example of each transform, and a run that a test hands to one method of one of them."""

from tfopt import chain
from tfopt.data import PipelineOptions
from tfopt.job import Facts, Run
from tfopt.job.roster import transform_class

KNOWN = {
    "replicas": 1,
    "batch_size": 16,
    "tuned_batch_size": 16,
    "steps_per_epoch": None,
    "epochs": 1,
    "seed": 0,
}

# Settings with which each transform does something on a CPU.
EXAMPLES = {
    "place": {"gpus": "all"},
    "keep_host_memory": {},
    "mixed_precision": {"policy": "mixed_bfloat16"},
    "distribute": {},
    "pipeline": {"batch_size": 16, "cache": "memory", "options": PipelineOptions(buffer=48)},
    "execution": {"steps_per_execution": 2},
    "fused_attention": {},
    "split": {},
    "remat": {"layers": "dense"},
    "accumulate": {"steps": 4},
    "learning_rate": {"peak": 0.01, "decay": "cosine"},
    "remove_channels": {"fraction": 0.5},
    "prune": {"sparsity": 0.5},
    "cluster": {"clusters": 4},
    "quantize_aware": {},
    "quantize": {"precision": "dynamic"},
}


def example(name):
    """Return a transform of the roster that does something."""
    return transform_class(name)(**EXAMPLES[name])


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
