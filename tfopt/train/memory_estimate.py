"""What a training step takes of a device's memory, told before it is run.

Guarantees: the step is traced, not run: weights, statistics and seeds stay as they are; a compiled
model's metrics and optimizer are built, as ``fit`` would. What is told is what tensors take; see
``training_memory`` for how far a process is from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from tfopt.compress.hooks import Hooks
from tfopt.errors import UserError, require_count
from tfopt.job.rebuild import require_built_keras3
from tfopt.report.format import table

if TYPE_CHECKING:
    import keras

# The most bytes of tensors that are there at a time when a graph runs, told without running it.
#
# Operations are taken in the order in which they were traced, which is forward and then backward;
# a tensor is there from the operation that gives it to the last that takes it. Guarantees: no
# tensor of the graph is made. Not seen: what kernels use inside, what runs at the same time, what
# XLA fuses, and what the allocator cannot use again. A length that is not known counts as one.


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# These give the memory that they are given.
_VIEWS = _names(
    "Identity IdentityN Reshape Squeeze ExpandDims StopGradient PreventGradient EnsureShape "
    "CheckNumerics Snapshot"
)
# These can write into memory that nobody needs any more.
_IN_PLACE = _names(
    "Add AddV2 AddN Sub Mul Maximum Minimum Neg RealDiv Div DivNoNan Relu Relu6 Elu Selu Tanh "
    "Sigmoid Softplus Softmax LogSoftmax Exp Log Sqrt Rsqrt Square Pow Erf Erfc BiasAdd ReluGrad "
    "Relu6Grad EluGrad TanhGrad SigmoidGrad SqrtGrad RsqrtGrad SelectV2 Select Abs Sign Cast "
    "SquaredDifference Reciprocal ZerosLike LeakyRelu LeakyReluGrad"
)
# These give what is there already: variables and inputs.
_NOTHING = frozenset(["ReadVariableOp", "VarHandleOp", "Placeholder"])
_PUSHED = ("TensorListPushBack", "TensorListSetItem")


@dataclass(frozen=True)
class Peak:
    """The most that is there, and what of it the graph gives in the end."""

    total_bytes: int
    of_outputs_bytes: int


def peak_of(graph: Any) -> Peak:
    """Of a traced function, without its inputs and its variables."""
    ends = [*graph.outputs, *getattr(graph, "control_outputs", ())]
    operations = _needed(graph, ends)
    root = _roots(operations)
    last = _last_uses(operations, root)
    outputs = {root[id(each)] for each in graph.outputs if id(each) in root}
    there: dict[int, int] = {}
    best = best_outputs = 0
    for place, operation in enumerate(operations):
        own = [each for each in operation.outputs if root[id(each)] == id(each)]
        sizes = _given(operation, own)
        ending = {
            key
            for key in (root.get(id(each)) for each in operation.inputs)
            if key in there and last[key] == place and key not in outputs
        }
        if operation.type in _IN_PLACE and sizes:
            _forward(ending, there, max(sizes.values()))
        there.update(sizes)
        now = sum(there.values()) + _inside(operation)
        if now > best:
            best = now
            best_outputs = sum(there.get(key, 0) for key in outputs)
        for key in (*ending, *(key for key in sizes if last.get(key, place) == place)):
            if key not in outputs:
                there.pop(key, None)
    return Peak(best, best_outputs)


def size_of(tensor: Any) -> int:
    """In bytes, an unknown length as one; nothing of handles and strings."""
    kind = tensor.dtype
    if not kind.size or tensor.shape.rank is None or kind.name in ("resource", "variant", "string"):
        return 0
    return int(kind.size * prod(length or 1 for length in tensor.shape.as_list()))


def _needed(graph: Any, ends: Iterable[Any]) -> list[Any]:
    """The operations that are run, in the order of the trace."""
    seen: set[Any] = set()
    waiting = [getattr(end, "op", end) for end in ends]
    while waiting:
        operation = waiting.pop()
        if operation in seen:
            continue
        seen.add(operation)
        waiting.extend(each.op for each in operation.inputs)
        waiting.extend(operation.control_inputs)
    return [each for each in graph.get_operations() if each in seen]


def _roots(operations: Sequence[Any]) -> dict[int, int]:
    """For each tensor the one whose memory it has."""
    root: dict[int, int] = {}
    for operation in operations:
        inputs = list(operation.inputs)
        passes_on = operation.type in _VIEWS or operation.type in ("While", "StatelessWhile")
        for place, output in enumerate(operation.outputs):
            root[id(output)] = id(output)
            if passes_on and place < len(inputs) and not _is_list(output):
                root[id(output)] = root.get(id(inputs[place]), id(inputs[place]))
    return root


def _last_uses(operations: Sequence[Any], root: dict[int, int]) -> dict[int, int]:
    last: dict[int, int] = {}
    for place, operation in enumerate(operations):
        for each in operation.inputs:
            last[root.get(id(each), id(each))] = place
    return last


def _forward(ending: set[int], there: dict[int, int], size: int) -> None:
    """Takes away what this operation writes over."""
    for key in ending:
        if there[key] >= size:
            del there[key]
            return


def _given(operation: Any, own: Sequence[Any]) -> dict[int, int]:
    if operation.type in _NOTHING:
        return {}
    found = {id(each): size_of(each) for each in own}
    if operation.type in ("While", "StatelessWhile"):
        found.update(_lists(operation))
    return {key: size for key, size in found.items() if size}


def _inside(operation: Any) -> int:
    """What the functions that an operation runs have at most, beyond what it gives."""
    bodies = [_body(operation, name) for name in _functions_of(operation)]
    most = 0
    for body in bodies:
        if body is not None:
            most = max(most, peak_of(body).total_bytes)
    if operation.type in ("While", "StatelessWhile"):
        return most
    return max(most - sum(map(size_of, operation.outputs)), 0)


def _lists(operation: Any) -> dict[int, int]:
    """What a loop keeps of each turn for its gradient."""
    body = _body(operation, operation.get_attr("body").name)
    if body is None:
        return {}
    turns = _turns(operation)
    found = {}
    for output, given in zip(operation.outputs, body.outputs, strict=False):
        if _is_list(output) and given.op.type in _PUSHED:
            found[id(output)] = turns * size_of(given.op.inputs[-1])
    return found


def _turns(operation: Any) -> int:
    """As many as the longest of what a loop goes through."""
    import tensorflow as tf

    longest = 1
    for each in operation.inputs:
        made = each.op
        if made.type == "TensorListFromTensor":
            longest = max(longest, made.inputs[0].shape.as_list()[0] or 1)
        elif made.type == "TensorListReserve":
            known = tf.get_static_value(made.inputs[1])
            longest = max(longest, int(known) if known is not None else 1)
    return longest


def _is_list(tensor: Any) -> bool:
    return bool(tensor.dtype.name == "variant")


def _functions_of(operation: Any) -> list[str]:
    attributes = operation.node_def.attr
    return [value.func.name for value in attributes.values() if value.HasField("func")]


def _body(operation: Any, name: str) -> Any:
    found = operation.graph._get_function(name)
    return getattr(found, "graph", None)


_MIB = 1024**2


@dataclass(frozen=True)
class TrainingMemory:
    """The parts of one training step's memory.

    Attributes:
        batch_size: Examples of the step.
        parameters_mib: The weights of the model, trainable or not.
        optimizer_mib: What the optimizer keeps of them.
        input_mib: The batch.
        gradients_mib: One for each trainable weight, when all are there.
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
    """What one step of a compiled model takes, as it is: under ``remat``, ``accumulate``, or not.

    It is no upper bound: kernels have memory of their own (cuDNN's workspaces), operations run at
    the same time, and allocators lose some. In the four nets of ``benchmarks/training_memory.py``
    (two CPU cores, TensorFlow 2.21, 2026-11) processes grew by 0.98 to 1.18 times what is told,
    1.07 to 1.20 in mixed_bfloat16, 1.12 to 1.51 under ``remat``, 1.06 to 2.15 under
    ``accumulate`` and 1.17 to 1.51 with XLA. On a GPU that script compares with TensorFlow's
    allocator; it has not been run on one.

    Args:
        model: A built and compiled Keras 3 model outside of strategies; of several replicas each
            takes what one device takes for its part of the batch.
        batch: What ``fit`` gives to the step: ``(x, y)`` or ``(x, y, sample_weight)``, arrays or
            tensors of which only shapes and types are looked at.
        batch_size: Another number of examples than those in ``batch``.
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
    parameters, slots = _of(model.variables), _of(model.optimizer.variables)
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
            "The memory of several replicas is not told at once.",
            expected="the model outside of tfopt.distribute, with one replica's part of the batch",
            received=f"{model.distribute_strategy.num_replicas_in_sync} replicas",
            fix="build it without a strategy and give batch_size=global batch // replicas",
        )


def _specs(batch: Any, batch_size: int | None) -> tuple[Any, int]:
    """The shapes and types of a batch, and its number of examples."""
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
    """The graph of one step, whose outputs are the gradients that the optimizer would be given."""
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


def _of(variables: Iterable[Any]) -> int:
    import numpy as np

    return sum(int(np.prod(v.shape)) * _width(v.dtype) for v in variables)


def _width(kind: str) -> int:
    import tensorflow as tf

    return int(tf.as_dtype(kind).size)
