"""Count what a traced function computes and moves, with the functions and loops it calls.

Only what leads to a result or to a change of state is counted, and a loop as often as it may turn
at most, where the graph says how often that is; what could not be counted is named. Nothing of the
function is run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfopt.measure.op_cost import PRODUCTS, UnknownShape, op_bytes, op_flops
from tfopt.train.graph_memory import body_of, functions_of, needed

Known = Mapping[str, int]
"""Numbers that a graph gets from its caller, by the names of its tensors."""

# TensorFlow makes every loop with these among its inputs: its counter and the most turns, which
# are below 0 where nobody gave any; and the loop of a gradient with the turns of the other loop.
_COUNTER, _MOST_TURNS, _TURNS_OF_FORWARD = 0, 1, 2
_HAND_ON_ONE_NUMBER = frozenset({"Max", "Min", "Identity", "Cast", "Reshape"})


def _number(tensor: Any, known: Known) -> int | None:
    """Return the whole number that a tensor holds, where the graph alone decides it."""
    import tensorflow as tf

    if tensor.name in known:
        return known[tensor.name]
    if not tensor.dtype.is_integer or tensor.shape.num_elements() != 1:
        return None
    value = tf.get_static_value(tensor)
    if value is not None:
        return int(value.item())
    op = tensor.op
    return _number(op.inputs[0], known) if op.type in _HAND_ON_ONE_NUMBER else None


_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_LOOPS = frozenset({"While", "StatelessWhile"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})


@dataclass
class GraphCost:
    """The sum of the costs of operations.

    Attributes:
        flops: Floating point operations.
        moved_bytes: Read and written by each operation on its own.
        products: Of ``flops``, those of matrix products and convolutions, by their dtype.
        left_out: What could not be counted, in words, and how often it stands in the graph.
    """

    flops: float = 0.0
    moved_bytes: float = 0.0
    products: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, other: GraphCost, times: float = 1.0) -> None:
        self.flops += times * other.flops
        self.moved_bytes += times * other.moved_bytes
        for dtype, flops in other.products.items():
            self.products[dtype] += times * flops
        self.left_out.update(other.left_out)


def graph_cost(function: Any) -> GraphCost:
    """Return the cost of one call of a concrete function whose inputs have fixed shapes."""
    graph = function.graph
    return _cost(graph, range(len(graph.outputs)), {})


def _cost(graph: Any, results: Iterable[int], given: Known) -> GraphCost:
    """Return the cost of a graph's ``results``; ``given`` are inputs with known values."""
    total = GraphCost()
    known = dict(given)
    ends = [graph.outputs[at] for at in results]
    ops = needed(graph, ends)
    taken = {tensor.name for tensor in (*ends, *(each for op in ops for each in op.inputs))}
    for op in ops:
        used = {at for at, tensor in enumerate(op.outputs) if tensor.name in taken}
        if op.type in _CALLS:
            body = _function(op, "f")
            total.add(_cost(body, used, _passed(op, body, known)))
        elif op.type in _LOOPS:
            total.add(_loop(op, used, known))
        elif op.type in _BRANCHES:
            total.add(_costliest_branch(op, used, known))
        else:
            _add_op(total, op)
    return total


def _add_op(total: GraphCost, op: Any) -> None:
    try:
        flops = op_flops(op)
    except UnknownShape:
        flops = None
    if flops is None or functions_of(op):
        total.left_out[f"the arithmetic of {op.type}"] += 1
    else:
        total.flops += flops
        if op.type in PRODUCTS:
            total.products[op.outputs[0].dtype.name] += flops
    try:
        total.moved_bytes += op_bytes(op)
    except UnknownShape:
        total.left_out[f"the bytes of {op.type}"] += 1


def _loop(op: Any, used: set[int], known: dict[str, int]) -> GraphCost:
    """Return a loop's cost; ``known`` gains how often it turns, for the gradient's loop."""
    body, condition = _function(op, "body"), _function(op, "cond")
    turns, total = _turns(op, known), GraphCost()
    if turns is None:
        turns = 1
        total.left_out[f"all turns but one of the loop {op.name}"] += 1
    else:
        known[op.outputs[_COUNTER].name] = turns
    inner = {name: v for name, v in _passed(op, body, known).items() if name in _kept(body)}
    total.add(_cost(body, _carried(body, condition, used), inner), turns)
    total.add(_cost(condition, (0,), {}), turns + 1)
    return total


def _turns(op: Any, known: Known) -> int | None:
    if len(op.inputs) > _TURNS_OF_FORWARD:
        forward = op.inputs[_TURNS_OF_FORWARD]
        if forward.op.type in _LOOPS and forward.value_index == _COUNTER and forward.name in known:
            return known[forward.name]
    most = _number(op.inputs[_MOST_TURNS], known)
    return None if most is None or most < 0 else most


def _kept(body: Any) -> set[str]:
    """Return the variables that a loop hands on as they are."""
    names = set()
    for before, after in zip(body.inputs, body.outputs, strict=True):
        while after.op.type == "Identity":
            after = after.op.inputs[0]
        if after is before:
            names.add(before.name)
    return names


def _carried(body: Any, condition: Any, used: set[int]) -> set[int]:
    """Return a loop's variables that reach a used one or the condition, in any number of turns."""
    wanted = used | _inputs_reached(condition, (0,))
    while True:
        more = wanted | _inputs_reached(body, wanted)
        if more == wanted:
            return wanted
        wanted = more


def _costliest_branch(op: Any, used: set[int], known: Known) -> GraphCost:
    # The first input chooses; the branches get the others.
    branches = [body_of(op, name) for name in functions_of(op)]
    costs = [_cost(branch, used, _passed(op, branch, known, first=1)) for branch in branches]
    chosen = max(costs, key=lambda cost: (cost.flops, cost.moved_bytes))
    if any(cost.flops != chosen.flops for cost in costs):
        chosen.left_out[f"the cheaper branches of {op.type}, the costliest taken to run"] += 1
    return chosen


def _passed(op: Any, body: Any, known: Known, *, first: int = 0) -> Known:
    """Return the known numbers as a called function sees them."""
    pairs = zip(body.inputs, op.inputs[first:], strict=True)
    found = {inner.name: _number(outer, known) for inner, outer in pairs}
    return {name: value for name, value in found.items() if value is not None}


def _inputs_reached(graph: Any, results: Iterable[int]) -> set[int]:
    ops = set(needed(graph, [graph.outputs[at] for at in results]))
    return {at for at, tensor in enumerate(graph.inputs) if tensor.op in ops}


def _function(op: Any, attribute: str) -> Any:
    return body_of(op, op.get_attr(attribute).name)
