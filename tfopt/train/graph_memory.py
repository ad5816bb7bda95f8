"""Estimate the most bytes of tensors that a graph holds at a time, without running it.

Operations are taken in the order in which they were traced, which is forward and then backward; a
tensor is there from the operation that gives it to the last that takes it. Not seen: what kernels
use inside, what runs at the same time, what XLA fuses, and what the allocator cannot use again. A
length that is not known counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any


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
_NOTHING = _names("ReadVariableOp VarHandleOp Placeholder")
_LOOPS = ("While", "StatelessWhile")
_PUSHED = ("TensorListPushBack", "TensorListSetItem")


@dataclass(frozen=True)
class Peak:
    """The most that is there at a time, and what of it the graph gives in the end."""

    total_bytes: int
    of_outputs_bytes: int


def peak_of(graph: Any) -> Peak:
    """Return the peak of a traced function, without its inputs and its variables."""
    operations = needed(graph, graph.outputs)
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
    """Return the bytes of a tensor, an unknown length as one; 0 for handles and strings."""
    kind = tensor.dtype
    if not kind.size or tensor.shape.rank is None or kind.name in ("resource", "variant", "string"):
        return 0
    return int(kind.size * prod(length or 1 for length in tensor.shape.as_list()))


def needed(graph: Any, results: Iterable[Any]) -> list[Any]:
    """Return what leads to these results or runs for its own sake, in the order of the trace."""
    seen: set[Any] = set()
    waiting = [each.op for each in results]
    waiting += getattr(graph, "control_outputs", ())
    while waiting:
        operation = waiting.pop()
        if operation not in seen:
            seen.add(operation)
            waiting.extend(each.op for each in operation.inputs)
            waiting.extend(operation.control_inputs)
    return [each for each in graph.get_operations() if each in seen]


def _roots(operations: Sequence[Any]) -> dict[int, int]:
    """Return for each tensor the one whose memory it has."""
    root: dict[int, int] = {}
    for operation in operations:
        inputs = list(operation.inputs)
        passes_on = operation.type in _VIEWS or operation.type in _LOOPS
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
    """Take away what an operation of this size writes over."""
    for key in ending:
        if there[key] >= size:
            del there[key]
            return


def _given(operation: Any, own: Sequence[Any]) -> dict[int, int]:
    if operation.type in _NOTHING:
        return {}
    found = {id(each): size_of(each) for each in own}
    if operation.type in _LOOPS:
        found.update(_lists(operation))
    return {key: size for key, size in found.items() if size}


def _inside(operation: Any) -> int:
    """Return what the functions that an operation runs have at most, beyond what it gives."""
    bodies = [body_of(operation, name) for name in functions_of(operation)]
    most = max((peak_of(body).total_bytes for body in bodies if body is not None), default=0)
    if operation.type in _LOOPS:
        return most
    return max(most - sum(map(size_of, operation.outputs)), 0)


def _lists(operation: Any) -> dict[int, int]:
    """Return what a loop keeps of each turn for its gradient."""
    body = body_of(operation, operation.get_attr("body").name)
    if body is None:
        return {}
    turns = _turns(operation)
    found = {}
    for output, given in zip(operation.outputs, body.outputs, strict=False):
        if _is_list(output) and given.op.type in _PUSHED:
            found[id(output)] = turns * size_of(given.op.inputs[-1])
    return found


def _turns(operation: Any) -> int:
    """Return the turns of a loop: the longest of the lists that it goes through."""
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


def functions_of(operation: Any) -> list[str]:
    """Return the names of the functions that a loop, a condition or a call runs."""
    held = [value for _, value in sorted(operation.node_def.attr.items())]
    single = [value.func.name for value in held if value.HasField("func")]
    return single + [each.name for value in held for each in value.list.func]


def body_of(operation: Any, name: str) -> Any:
    """Return the graph of a function that an operation runs; None where there is none."""
    return getattr(operation.graph._get_function(name), "graph", None)
