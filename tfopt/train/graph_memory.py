"""Estimate the peak memory of a graph's tensors, without running it.

Operations run in the order of the trace, forward and then backward; a tensor lives from the
operation that computes it to its last use. Not counted: workspaces of kernels, concurrent
operations, XLA's fusions, and fragmentation. An unknown size counts as 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any


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
