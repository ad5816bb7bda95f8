"""List the transforms by their names in recipe files and on the command line.

A name imports only the file of its transform. The contract tests walk this list.
"""

from __future__ import annotations

from importlib import import_module

from tfopt.errors import UserError
from tfopt.job.plain_values import did_you_mean, show
from tfopt.job.transform import Transform

ROSTER = {
    "place": "tfopt.train.placement:Place",
    "keep_host_memory": "tfopt.train.kept_memory:KeepHostMemory",
    "mixed_precision": "tfopt.train.precision:MixedPrecision",
    "distribute": "tfopt.distribute.replicas:Distribute",
    "pipeline": "tfopt.data.pipeline:Pipeline",
    "execution": "tfopt.train.execution:Execution",
    "fused_attention": "tfopt.train.attention:FusedAttention",
    "split": "tfopt.train.split:Split",
    "remat": "tfopt.train.remat:Remat",
    "accumulate": "tfopt.train.accumulate:Accumulate",
    "learning_rate": "tfopt.train.learning_rate:LearningRate",
    "remove_channels": "tfopt.compress.remove_channels:RemoveChannels",
    "prune": "tfopt.compress.prune:Prune",
    "cluster": "tfopt.compress.cluster:Cluster",
    "quantize_aware": "tfopt.compress.quantize_aware:QuantizeAware",
    "quantize": "tfopt.export.quantize:Quantize",
}


def transform_class(name: object) -> type[Transform]:
    """Return the class of a name; an unknown name raises an error that lists the known ones."""
    if not isinstance(name, str) or name not in ROSTER:
        raise UserError(
            f"There is no transform {name!r}.",
            expected=", ".join(ROSTER),
            received=show(name),
            fix=did_you_mean(str(name), list(ROSTER)),
        )
    module, _, attribute = ROSTER[name].partition(":")
    kind: type[Transform] = getattr(import_module(module), attribute)
    return kind


def transform_name(transform: Transform) -> str:
    """Return the roster name of a single transform."""
    home = f"{type(transform).__module__}:{type(transform).__name__}"
    for name, place in ROSTER.items():
        if place == home:
            return name
    raise UserError(
        f"{type(transform).__name__} is not in the roster, so it cannot be written to a file.",
        expected=", ".join(ROSTER),
        received=home,
    )
