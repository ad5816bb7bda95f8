"""Estimate what a training step takes of a device's memory.

The step is traced, not run: weights, statistics and seeds stay as they are; a compiled model's
metrics and optimizer are built, as ``fit`` would.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from tfopt.compress.hooks import Hooks
from tfopt.errors import UserError, require_count
from tfopt.job.rebuild import require_built_keras3
from tfopt.report.format import table
from tfopt.train.graph_memory import peak_of, size_of

if TYPE_CHECKING:
    import keras

_MIB = 1024**2


@dataclass(frozen=True)
class TrainingMemory:
    """The parts of one training step's memory.

    Attributes:
        batch_size: Examples of the step.
        parameters_mib: The weights of the model, trainable or not.
        optimizer_mib: The optimizer's variables.
        input_mib: The batch.
        gradients_mib: The gradients of all trainable weights together.
        activations_mib: What else is there at the fullest moment: what the forward pass keeps for
            the backward pass, and what both work on.
        peak_mib: All that is there at that moment.
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
    """Estimate what a step of a compiled model takes, also under ``remat``.

    It is no upper bound: kernels have memory of their own (cuDNN's workspaces), operations run at
    the same time, and allocators lose some. In the four nets of ``benchmarks/training_memory.py``
    (two CPU cores, TensorFlow 2.21, 2026-11) processes grew by 0.98 to 1.18 times the estimate,
    1.07 to 1.20 in mixed_bfloat16 and 1.17 to 1.51 with XLA.

    Args:
        model: A built and compiled Keras 3 model outside of strategies; of several replicas each
            takes what one device takes for its part of the batch.
        batch: What ``fit`` gives to the step: ``(x, y)`` or ``(x, y, sample_weight)``, arrays or
            tensors of which only shapes and types are looked at.
        batch_size: Another number of examples than those in ``batch``.

    Example:
        print(tfopt.training_memory(model, (x[:1], y[:1]), batch_size=256))
    """
    require_built_keras3(model)
    _require_compiled(model)
    if batch_size is not None:
        require_count("training_memory(batch_size)", batch_size)
    specs, examples = _specs(batch, batch_size)
    model._symbolic_build(data_batch=specs)
    graph = _traced(model, specs)
    peak = peak_of(graph)
    gradients = sum(map(size_of, graph.outputs))
    parameters, slots = _bytes_of(model.variables), _bytes_of(model.optimizer.variables)
    taken = sum(map(size_of, graph.inputs))
    working = max(peak.total_bytes, gradients)
    return TrainingMemory(
        batch_size=examples,
        parameters_mib=parameters / _MIB,
        optimizer_mib=slots / _MIB,
        input_mib=taken / _MIB,
        gradients_mib=gradients / _MIB,
        activations_mib=(peak.total_bytes - peak.of_outputs_bytes) / _MIB,
        peak_mib=(parameters + slots + taken + working) / _MIB,
    )


def _require_compiled(model: Any) -> None:
    if not getattr(model, "compiled", False):
        raise UserError(
            "training_memory() needs a compiled model.",
            expected="a model on which compile(optimizer, loss) was called",
            received=f"{type(model).__name__} without an optimizer",
            fix="call model.compile(...) first",
        )
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise UserError(
            "The memory of several replicas is not estimated at once.",
            expected="the model outside of tfopt.distribute, with one replica's part of the batch",
            received=f"{model.distribute_strategy.num_replicas_in_sync} replicas",
            fix="build it without a strategy and give batch_size=global batch // replicas",
        )


def _specs(batch: Any, batch_size: int | None) -> tuple[Any, int]:
    import keras
    import tensorflow as tf

    if not isinstance(batch, tuple) or not 1 <= len(batch) <= 3:
        raise UserError(
            "The batch is not what fit() gives to a step.",
            expected="a tuple (x, y) or (x, y, sample_weight)",
            received=type(batch).__name__,
        )
    lengths = {
        len(leaf) for leaf in keras.tree.flatten(batch) if leaf is not None and len(leaf.shape)
    }
    if len(lengths) != 1:
        raise UserError(
            "The parts of the batch have different numbers of examples.",
            expected="one number of examples",
            received=", ".join(map(str, sorted(lengths))) or "none",
        )
    examples = batch_size or lengths.pop()

    def spec(leaf: Any) -> Any:
        if leaf is None:
            return None
        kind = keras.backend.standardize_dtype(leaf.dtype)
        shape = [examples, *leaf.shape[1:]] if len(leaf.shape) else []
        # As Keras's data adapters do.
        kind = keras.config.floatx() if kind == "float64" else kind
        return tf.TensorSpec(shape, kind)

    return keras.tree.map_structure(spec, batch), examples


def _traced(model: Any, specs: Any) -> Any:
    """Return the graph of one step, whose outputs are the gradients given to the optimizer."""
    import tensorflow as tf

    def step(data: Any) -> list[Any]:
        given: list[Any] = []

        def apply(grads: Iterable[Any], trainable_variables: Any = None) -> None:
            given.extend(tf.convert_to_tensor(grad) for grad in grads if grad is not None)

        hooks = Hooks()
        hooks.replace(model.optimizer, "apply", apply)
        try:
            model.train_step(data)
        finally:
            hooks.take_off()
        return given

    return tf.function(step, autograph=False).get_concrete_function(specs).graph


def _bytes_of(variables: Iterable[Any]) -> int:
    import tensorflow as tf

    return sum(prod(v.shape) * int(tf.as_dtype(v.dtype).size) for v in variables)
