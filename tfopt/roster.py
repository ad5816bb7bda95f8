"""Every transform under the name it has in recipe files and on the command line.

Guarantees: naming a transform imports only that transform's own file; the contract tests walk
this list, so a transform that is not in it does not exist.
"""

from __future__ import annotations

from importlib import import_module

from tfopt.errors import UserError
from tfopt.job import Transform

ROSTER = {
    "place": "tfopt.transforms.placement:Place",
    "keep_host_memory": "tfopt.transforms.host_memory:KeepHostMemory",
    "mixed_precision": "tfopt.transforms.precision:MixedPrecision",
    "distribute": "tfopt.transforms.distribution:Distribute",
    "pipeline": "tfopt.transforms.pipeline:Pipeline",
    "execution": "tfopt.transforms.execution:Execution",
    "remat": "tfopt.transforms.remat:Remat",
    "accumulate": "tfopt.transforms.accumulation:Accumulate",
    "learning_rate": "tfopt.transforms.learning_rate:LearningRate",
    "remove_channels": "tfopt.transforms.channels:RemoveChannels",
    "distill": "tfopt.transforms.distillation:Distill",
    "prune": "tfopt.transforms.pruning:Prune",
    "cluster": "tfopt.transforms.clustering:Cluster",
    "quantize_aware": "tfopt.transforms.quantize_aware:QuantizeAware",
    "quantize": "tfopt.transforms.quantization:Quantize",
}


def transform_class(name: str) -> type[Transform]:
    """The class behind a name; an unknown one is an error that lists the known ones."""
    if name not in ROSTER:
        raise UserError(
            f"There is no transform {name!r}.",
            expected=", ".join(ROSTER),
            received=repr(name),
        )
    module, _, attribute = ROSTER[name].partition(":")
    found: type[Transform] = getattr(import_module(module), attribute)
    return found


def transform_name(transform: Transform) -> str:
    """The roster name of a single transform."""
    home = f"{type(transform).__module__}:{type(transform).__name__}"
    for name, place in ROSTER.items():
        if place == home:
            return name
    raise UserError(
        f"{type(transform).__name__} is not in the roster, so it cannot be written to a file.",
        expected=", ".join(ROSTER),
        received=home,
    )
