"""Estimate the most bytes of tensors that a graph holds at a time, without running it.

Operations are taken in the order in which they were traced, which is forward and then backward; a
tensor is there from the operation that gives it to the last that takes it. Not seen: what kernels
use inside, what runs at the same time, what XLA fuses, and what the allocator cannot use again. A
length that is not known counts as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# These give the memory that they are given.
_VIEWS = _names(
    "Identity IdentityN Reshape Squeeze ExpandDims StopGradient PreventGradient EnsureShape "
    "CheckNumerics Snapshot While StatelessWhile"
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


def peak_of(graph: Any) -> tuple[int, int]:
    """Return the most bytes that are there at a time, and how many of them are of the results.

    The inputs of the graph and its variables are not counted.
    """
    operations = _needed(graph)
    owner = _owners(operations)
    last = {owner[id(t)]: place for place, op in enumerate(operations) for t in op.inputs}
    outputs = {owner[id(each)] for each in graph.outputs}
    there: dict[int, int] = {}
    most = of_results = 0
    for place, operation in enumerate(operations):
        taken = {owner[id(each)] for each in operation.inputs}
        ending = {key for key in taken - outputs if key in there and last[key] == place}
        given = _given(operation, owner)
        if operation.type in _IN_PLACE and given:
            large = [key for key in ending if there[key] >= max(given.values())]
            for key in large[:1]:
                del there[key]
        there.update(given)
        now = sum(there.values()) + _inside(operation)
        if now > most:
            most, of_results = now, sum(there.get(key, 0) for key in outputs)
        unused = {key for key in given if key not in last} - outputs
        for key in ending | unused:
            there.pop(key, None)
    return most, of_results


def size_of(tensor: Any) -> int:
    """Return the bytes of a tensor, an unknown length as one; 0 for handles and strings."""
    kind = tensor.dtype
    if not kind.size or tensor.shape.rank is None or kind.name in ("resource", "variant", "string"):
        return 0
    return int(kind.size * prod(length or 1 for length in tensor.shape.as_list()))


def bytes_given(operations: Sequence[Any]) -> int:
    """Return the bytes of what operations give; views and reads of variables give nothing."""
    giving = [each for each in operations if each.type not in _VIEWS | _NOTHING]
    return sum(size_of(tensor) for operation in giving for tensor in operation.outputs)


def _needed(graph: Any) -> list[Any]:
    """Return what leads to the results or runs for its own sake, in the order of the trace."""
    seen: set[Any] = set()
    waiting = [*(each.op for each in graph.outputs), *getattr(graph, "control_outputs", ())]
    while waiting:
        operation = waiting.pop()
        if operation not in seen:
            seen.add(operation)
            waiting += [*(each.op for each in operation.inputs), *operation.control_inputs]
    return [each for each in graph.get_operations() if each in seen]


def _owners(operations: Sequence[Any]) -> dict[int, int]:
    """Return for each tensor the one whose memory it has."""
    owner: dict[int, int] = {}
    for operation in operations:
        inputs = list(operation.inputs) if operation.type in _VIEWS else []
        for place, output in enumerate(operation.outputs):
            owner[id(output)] = id(output)
            if place < len(inputs) and output.dtype.name != "variant":
                owner[id(output)] = owner[id(inputs[place])]
    return owner


def _given(operation: Any, owner: dict[int, int]) -> dict[int, int]:
    """Return the sizes of the tensors for which an operation needs memory."""
    if operation.type in _NOTHING:
        return {}
    found = {id(t): size_of(t) for t in operation.outputs if owner[id(t)] == id(t)}
    if operation.type in _LOOPS:
        found.update(_lists(operation))
    return {key: size for key, size in found.items() if size}


def _inside(operation: Any) -> int:
    """Return what the functions that an operation runs have at most, beyond what it gives."""
    attributes = operation.node_def.attr.values()
    names = [value.func.name for value in attributes if value.HasField("func")]
    names += [each.name for value in attributes for each in value.list.func]
    bodies = [_body(operation, name) for name in names]
    most = max((peak_of(body)[0] for body in bodies if body is not None), default=0)
    if operation.type in _LOOPS:
        return most
    return max(most - sum(map(size_of, operation.outputs)), 0)


def _lists(loop: Any) -> dict[int, int]:
    """Return what a loop keeps of each turn for its gradient."""
    import tensorflow as tf

    body = _body(loop, loop.get_attr("body").name)
    turns = 1  # as many as the longest of the lists that it goes through has elements
    for made in (each.op for each in loop.inputs):
        if made.type == "TensorListFromTensor":
            turns = max(turns, made.inputs[0].shape.as_list()[0] or 1)
        elif made.type == "TensorListReserve":
            turns = max(turns, int(tf.get_static_value(made.inputs[1]) or 1))
    pairs = zip(loop.outputs, body.outputs if body is not None else (), strict=False)
    pushed = ("TensorListPushBack", "TensorListSetItem")
    return {
        id(output): turns * size_of(given.op.inputs[-1])
        for output, given in pairs
        if given.op.type in pushed
    }


def _body(operation: Any, name: str) -> Any:
    """Return the graph of a function that an operation runs; None where there is none."""
    return getattr(operation.graph._get_function(name), "graph", None)
