"""Estimate the device memory of a training step.

The step is traced, not run: weights, statistics and seeds are unchanged; metrics and optimizer are
built, as by ``fit``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.errors import UserError, require_count
from tfopt.hooks import replaced
from tfopt.job.rebuild import require_built_keras3, require_compiled
from tfopt.keras_internals import build_by_shapes
from tfopt.report.format import table
from tfopt.train.graph_memory import peak_of, size_of

if TYPE_CHECKING:
    import keras

_MIB = 1024**2


@dataclass(frozen=True)
class TrainingMemory:
    """The memory of one training step, by parts.

    Example:
        memory = tfopt.training_memory(model, (x, y), batch_size=64)
        print(memory.peak_mib, memory.activations_mib)

    Attributes:
        batch_size: Examples in the step.
        parameters_mib: The weights.
        optimizer_mib: The optimizer's variables.
        input_mib: The batch.
        gradients_mib: The gradients of the weights.
        activations_mib: The rest of the peak: activations kept for the backward pass, and
            temporaries.
        peak_mib: The peak.
    """

    batch_size: int
    parameters_mib: float
    optimizer_mib: float
    input_mib: float
    gradients_mib: float
    activations_mib: float
    peak_mib: float

    def __str__(self) -> str:
        rows = [
            (name, f"{getattr(self, f'{name}_mib'):.1f}")
            for name in ("parameters", "optimizer", "input", "gradients", "activations", "peak")
        ]
        return "\n".join(table(("", f"MiB, batch of {self.batch_size}"), rows))


def training_memory(
    model: keras.Model, batch: Any, batch_size: int | None = None
) -> TrainingMemory:
    """Estimate the memory of a step of a compiled model, also under ``remat``.

    It is no upper bound: kernels have workspaces (cuDNN), operations run concurrently, and memory
    is fragmented: ``benchmarks/gpu_day.py`` compares.

    Args:
        model: A built and compiled Keras 3 model, built outside of strategies.
        batch: ``(x, y)`` or ``(x, y, sample_weight)``, of which only shapes and dtypes matter.
        batch_size: Another number of examples than in ``batch``.

    Raises:
        UserError: The model is not built and compiled, or has replicas, or ``batch`` is invalid.

    Example:
        print(tfopt.training_memory(model, (x[:1], y[:1]), batch_size=256))
    """
    require_built_keras3(model)
    require_compiled(model, "training_memory")
    _require_one_replica(model)
    if batch_size is not None:
        require_count("training_memory(batch_size)", batch_size)
    specs, examples = _specs(batch, batch_size)
    build_by_shapes(model, specs)
    graph = _traced(model, specs)
    most, of_results = peak_of(graph)
    gradients, taken = (sum(map(size_of, tensors)) for tensors in (graph.outputs, graph.inputs))
    parameters, slots = bytes_of(model.variables), bytes_of(model.optimizer.variables)
    return TrainingMemory(
        batch_size=examples,
        parameters_mib=parameters / _MIB,
        optimizer_mib=slots / _MIB,
        input_mib=taken / _MIB,
        gradients_mib=gradients / _MIB,
        activations_mib=(most - of_results) / _MIB,
        peak_mib=(parameters + slots + taken + max(most, gradients)) / _MIB,
    )


def _require_one_replica(model: Any) -> None:
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise UserError(
            "training_memory() needs a model without replicas.",
            received=f"{model.distribute_strategy.num_replicas_in_sync} replicas",
            fix="build it without a strategy and give batch_size=global batch // replicas",
        )


def _specs(batch: Any, batch_size: int | None) -> tuple[Any, int]:
    import keras
    import tensorflow as tf

    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None and len(leaf.shape)]
    lengths = {leaf.shape[0] for leaf in leaves}
    if not isinstance(batch, tuple) or not 1 <= len(batch) <= 3 or len(lengths) != 1:
        raise UserError(
            "Invalid batch of training_memory().",
            expected="a tuple (x, y) or (x, y, sample_weight) of one number of examples",
            received=f"{type(batch).__name__} of {', '.join(map(str, lengths)) or 'no'} examples",
        )
    examples = batch_size or lengths.pop()

    def spec(leaf: Any) -> Any:
        if leaf is None:
            return None
        # A data frame has dtypes only for its columns.
        dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        kind = keras.backend.standardize_dtype(dtype)
        shape = [examples, *leaf.shape[1:]] if len(leaf.shape) else []
        # As Keras's data adapters do.
        kind = keras.config.floatx() if kind == "float64" else kind
        return tf.TensorSpec(shape, kind)

    return keras.tree.map_structure(spec, batch), examples


def _traced(model: Any, specs: Any) -> Any:
    """Return the graph of one step, whose outputs are the gradients."""
    import tensorflow as tf

    def step(data: Any) -> list[Any]:
        gradients: list[Any] = []

        def apply(grads: Iterable[Any], trainable_variables: Any = None) -> None:
            gradients.extend(tf.convert_to_tensor(grad) for grad in grads if grad is not None)

        with replaced(model.optimizer, apply=apply):
            model.train_step(data)
        return gradients

    return tf.function(step, autograph=False).get_concrete_function(specs).graph


def bytes_of(variables: Iterable[Any]) -> int:
    """Return the bytes of variables."""
    import tensorflow as tf

    return sum(prod(v.shape) * int(tf.as_dtype(v.dtype).size) for v in variables)
