"""Estimate the device memory of a training step.

The step is traced, not run: weights, statistics and seeds are unchanged; metrics and optimizer are
built, as by ``fit``. Its operations count in the order of the trace, forward and then backward; a
tensor lives from the operation that computes it to its last use. Not counted: workspaces of
kernels, concurrent operations, XLA's fusions, and fragmentation. An unknown size counts as 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.data.host_memory import MIB
from tfopt.errors import UserError, require_count
from tfopt.hooks import replaced
from tfopt.job.model_checks import require_built_keras3, require_compiled
from tfopt.keras_internals import build_by_shapes
from tfopt.report.format import table

if TYPE_CHECKING:
    import keras


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
        unit, size = ("KiB", 1024) if self.peak_mib < 1 else ("MiB", 1)
        rows = [
            (name, f"{getattr(self, f'{name}_mib') * size:.1f}")
            for name in ("parameters", "optimizer", "input", "gradients", "activations", "peak")
        ]
        return "\n".join(table(("", f"{unit}, batch of {self.batch_size}"), rows))


def training_memory(
    model: keras.Model, batch: Any, batch_size: int | None = None
) -> TrainingMemory:
    """Estimate the memory of a step of a compiled model, also under ``remat``.

    It is no upper bound: kernels have workspaces (cuDNN), operations run concurrently, and memory
    is fragmented: ``benchmarks/gpu_day.py`` compares. Under XLA a step keeps less:
    ``benchmarks/gpu_program.py`` prints what it holds for blocks of BERT-base.

    Args:
        model: A built and compiled Keras 3 model, built outside of strategies.
        batch: ``(x, y)`` or ``(x, y, sample_weight)``, of which only shapes and dtypes matter;
            ``(x,)`` for a model that trains without targets.
        batch_size: Another number of examples than in ``batch``.

    Raises:
        UserError: The model is not built and compiled, or has replicas, or ``batch`` is invalid.

    Example:
        print(tfopt.training_memory(model, (x[:1], y[:1]), batch_size=256))
    """
    require_built_keras3(model)
    require_compiled(model, "training_memory")
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise UserError(
            "training_memory() needs a model without replicas.",
            received=f"{model.distribute_strategy.num_replicas_in_sync} replicas",
            fix="build it without a strategy and give batch_size=global batch // replicas",
        )
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
        parameters_mib=parameters / MIB,
        optimizer_mib=slots / MIB,
        input_mib=taken / MIB,
        gradients_mib=gradients / MIB,
        activations_mib=(most - of_results) / MIB,
        peak_mib=(parameters + slots + taken + max(most, gradients)) / MIB,
    )


def _specs(batch: Any, batch_size: int | None) -> tuple[Any, int]:
    import keras
    import tensorflow as tf

    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    are_arrays = all(hasattr(leaf, "shape") for leaf in leaves)
    lengths = {leaf.shape[0] for leaf in leaves if are_arrays and len(leaf.shape)}
    if not isinstance(batch, tuple) or not 1 <= len(batch) <= 3 or len(lengths) != 1:
        raise UserError(
            "Invalid batch of training_memory().",
            expected="a tuple (x, y), (x, y, sample_weight), or (x,) for a model without targets, "
            "of one number of examples",
            received=f"{type(batch).__name__} of {', '.join(map(str, lengths)) or 'no'} examples",
            fix="of a dataset: next(iter(dataset))",
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

    # A train_step gets x alone where there is nothing else, as from Keras's fit.
    specs = map(partial(keras.tree.map_structure, spec), batch)
    return keras.utils.pack_x_y_sample_weight(*specs), examples


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


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Their results share the memory of their inputs.
_VIEWS = _names(
    "Identity IdentityN Reshape Squeeze ExpandDims StopGradient PreventGradient EnsureShape "
    "CheckNumerics Snapshot While StatelessWhile"
)
# They can write into the memory of an input that ends with them.
_IN_PLACE = _names(
    "Add AddV2 AddN Sub Mul Maximum Minimum Neg RealDiv Div DivNoNan Relu Relu6 Elu Selu Tanh "
    "Sigmoid Softplus Softmax LogSoftmax Exp Log Sqrt Rsqrt Square Pow Erf Erfc BiasAdd ReluGrad "
    "Relu6Grad EluGrad TanhGrad SigmoidGrad SqrtGrad RsqrtGrad SelectV2 Select Abs Sign Cast "
    "SquaredDifference Reciprocal ZerosLike LeakyRelu LeakyReluGrad"
)
# Variables and inputs, which need no new memory.
_NOTHING = _names("ReadVariableOp VarHandleOp Placeholder")
_LOOPS = ("While", "StatelessWhile")


def peak_of(graph: Any) -> tuple[int, int]:
    """Return the peak bytes, and the bytes of the graph's outputs at that moment.

    The inputs of the graph and its variables are not counted.
    """
    operations = _needed(graph)
    owner = _owners(operations)
    last = {owner[id(t)]: place for place, op in enumerate(operations) for t in op.inputs}
    outputs = {owner[id(tensor)] for tensor in graph.outputs}
    alive: dict[int, int] = {}
    most = of_results = 0
    for place, operation in enumerate(operations):
        taken = {owner[id(tensor)] for tensor in operation.inputs}
        ending = {key for key in taken - outputs if key in alive and last[key] == place}
        results = _results(operation, owner)
        if operation.type in _IN_PLACE and results:
            large = [key for key in ending if alive[key] >= max(results.values())]
            for key in large[:1]:
                del alive[key]
        alive.update(results)
        now = sum(alive.values()) + _inside(operation)
        if now > most:
            most, of_results = now, sum(alive.get(key, 0) for key in outputs)
        unused = {key for key in results if key not in last} - outputs
        for key in ending | unused:
            alive.pop(key, None)
    return most, of_results


def size_of(tensor: Any) -> int:
    """Return the bytes of a tensor, an unknown size as 1; 0 for handles and strings."""
    kind = tensor.dtype
    if not kind.size or tensor.shape.rank is None or kind.name in ("resource", "variant", "string"):
        return 0
    return int(kind.size * prod(length or 1 for length in tensor.shape.as_list()))


def result_bytes(operations: Sequence[Any]) -> int:
    """Return the bytes of the results of operations, without views and reads of variables."""
    giving = [operation for operation in operations if operation.type not in _VIEWS | _NOTHING]
    return sum(size_of(tensor) for operation in giving for tensor in operation.outputs)


def _needed(graph: Any) -> list[Any]:
    """Return the operations that the outputs and control outputs depend on, in traced order."""
    seen: set[Any] = set()
    waiting = [*(tensor.op for tensor in graph.outputs), *getattr(graph, "control_outputs", ())]
    while waiting:
        operation = waiting.pop()
        if operation not in seen:
            seen.add(operation)
            waiting += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return [operation for operation in graph.get_operations() if operation in seen]


def _owners(operations: Sequence[Any]) -> dict[int, int]:
    """Return for each tensor the one that owns its memory."""
    owner: dict[int, int] = {}
    for operation in operations:
        inputs = list(operation.inputs) if operation.type in _VIEWS else []
        for place, output in enumerate(operation.outputs):
            owner[id(output)] = id(output)
            if place < len(inputs) and output.dtype.name != "variant":
                owner[id(output)] = owner[id(inputs[place])]
    return owner


def _results(operation: Any, owner: dict[int, int]) -> dict[int, int]:
    """Return the sizes of the results for which an operation allocates memory."""
    if operation.type in _NOTHING:
        return {}
    sizes = {id(t): size_of(t) for t in operation.outputs if owner[id(t)] == id(t)}
    if operation.type in _LOOPS:
        sizes.update(_lists(operation))
    return {key: size for key, size in sizes.items() if size}


def _inside(operation: Any) -> int:
    """Return the peak of the functions that an operation runs, beyond its own results."""
    attributes = operation.node_def.attr.values()
    names = [value.func.name for value in attributes if value.HasField("func")]
    names += [function.name for value in attributes for function in value.list.func]
    bodies = [_body(operation, name) for name in names]
    most = max((peak_of(body)[0] for body in bodies if body is not None), default=0)
    if operation.type in _LOOPS:
        return most
    return max(most - sum(map(size_of, operation.outputs)), 0)


def _lists(loop: Any) -> dict[int, int]:
    """Return the sizes of the lists in which a loop keeps its iterations for the gradient."""
    import tensorflow as tf

    body = _body(loop, loop.get_attr("body").name)
    turns = 1  # the length of the longest list that it iterates over
    for operation in (tensor.op for tensor in loop.inputs):
        if operation.type == "TensorListFromTensor":
            turns = max(turns, operation.inputs[0].shape.as_list()[0] or 1)
        elif operation.type == "TensorListReserve":
            turns = max(turns, int(tf.get_static_value(operation.inputs[1]) or 1))
    pairs = zip(loop.outputs, body.outputs if body is not None else (), strict=False)
    pushed = ("TensorListPushBack", "TensorListSetItem")
    return {
        id(output): turns * size_of(result.op.inputs[-1])
        for output, result in pairs
        if result.op.type in pushed
    }


def _body(operation: Any, name: str) -> Any:
    """Return the graph of a function that an operation runs, or None."""
    return getattr(operation.graph._get_function(name), "graph", None)
