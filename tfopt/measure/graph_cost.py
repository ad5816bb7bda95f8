"""Count what a traced function computes and moves, with the functions and loops it calls.

Only what leads to a result or to a change of state is counted, and a loop as often as it turns,
where the graph alone decides that; what could not be counted is named. Nothing of the function is
run but the counters of its loops.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfopt.measure.op_cost import OpCost, UnknownShape, op_bytes, op_flops

# How often a loop of a graph turns, where constants and its own counters decide that.

Known = Mapping[str, Any]
"""Values of tensors, by their names in one graph."""

_MOST_OPS = 300
_MOST_TURNS = 1_000_000


@dataclass(frozen=True)
class Turns:
    """The turns of a loop; ``final`` holds its last counters, by their place among variables."""

    turns: int | None
    final: Mapping[int, Any] = field(default_factory=dict)


def loop_turns(op: Any, body: Any, condition: Any, known: Known) -> Turns:
    """Run the loop with nothing in it but the variables that its condition depends on."""
    wanted = _places(condition, condition.outputs[:1])
    deciding = None if wanted is None else _closed(body, wanted)
    if deciding is None or not _start(op, deciding, known):
        return Turns(None)
    counters = set(deciding)
    for at in range(len(body.outputs)):
        # Other counters: the loop of the gradient turns as often as one of them says.
        more = _closed(body, counters | {at}) if _is_counter(op.inputs[at]) else None
        if more is not None and _start(op, more, known):
            counters |= more
    places = sorted(counters)
    values = _start(op, counters, known)
    turns, *final = _run([values[at] for at in places], places, body, condition)
    if int(turns) >= _MOST_TURNS:
        return Turns(None)
    return Turns(int(turns), dict(zip(places, final, strict=True)))


def _start(op: Any, places: set[int], known: Known) -> dict[int, Any]:
    """Return the values a loop begins with; empty where one of them is not known."""
    values = static_values([op.inputs[at] for at in places], known)
    found = {at: values.get(op.inputs[at].name) for at in places}
    return {} if any(value is None for value in found.values()) else found


def _is_counter(tensor: Any) -> bool:
    return bool(tensor.dtype.is_integer and tensor.shape.rank == 0)


def static_values(tensors: Iterable[Any], known: Known) -> dict[str, Any]:
    """Return the values of the tensors that constants and known values decide."""
    found: dict[str, Any] = {}
    for tensor in tensors:
        if tensor.name in known:
            found[tensor.name] = known[tensor.name]
            continue
        # Large results are no counters.
        if not tensor.shape.is_fully_defined() or tensor.shape.num_elements() > 16:
            continue
        if not (tensor.dtype.is_integer or tensor.dtype.is_bool or tensor.dtype.is_floating):
            continue
        behind = _behind([tensor], known)
        if behind is not None:
            (found[tensor.name],) = _evaluate([tensor], behind, known)
    return found


def _closed(body: Any, wanted: set[int]) -> set[int] | None:
    """Return these variables and all that decide them over the turns; None where state does too."""
    while True:
        more = _places(body, [body.outputs[at] for at in sorted(wanted)])
        if more is None or more <= wanted:
            return None if more is None else wanted
        wanted = wanted | more


def _places(graph: Any, results: Sequence[Any]) -> set[int] | None:
    inputs = {tensor.name: at for at, tensor in enumerate(graph.inputs)}
    behind = _behind(results, inputs)
    if behind is None:
        return None
    # A variable may be handed on as it is.
    reached = {tensor.name for op in behind for tensor in op.inputs}
    reached |= {tensor.name for tensor in results}
    return {at for name, at in inputs.items() if name in reached}


def _behind(results: Sequence[Any], known: Mapping[str, Any]) -> list[Any] | None:
    """Return the operations that make these tensors from constants and known ones, or None."""
    found: list[Any] = []
    waiting = [tensor for tensor in results if tensor.name not in known]
    while waiting:
        op = waiting.pop().op
        if op in found:
            continue
        calls = any(attribute.type in ("func", "list(func)") for attribute in op.op_def.attr)
        if op.type == "Placeholder" or op.op_def.is_stateful or calls or len(found) > _MOST_OPS:
            return None
        found.append(op)
        waiting += [tensor for tensor in op.inputs if tensor.name not in known]
    return found


def _evaluate(results: Sequence[Any], behind: Sequence[Any], known: Known) -> list[Any]:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        made = _copied(results, behind, {name: tf.constant(v) for name, v in known.items()})
        return _session_run(graph, made)


def _run(start: Sequence[Any], counters: Sequence[int], body: Any, condition: Any) -> list[Any]:
    import tensorflow as tf

    def goes_on(turns: Any, *values: Any) -> Any:
        given = {condition.inputs[at].name: v for at, v in zip(counters, values, strict=True)}
        results = condition.outputs[:1]
        (more,) = _copied(results, _behind(results, given) or [], given)
        return tf.logical_and(tf.less(turns, _MOST_TURNS), more)

    def turn(turns: Any, *values: Any) -> list[Any]:
        given = {body.inputs[at].name: v for at, v in zip(counters, values, strict=True)}
        results = [body.outputs[at] for at in counters]
        return [turns + 1, *_copied(results, _behind(results, given) or [], given)]

    with tf.Graph().as_default() as graph:
        variables = [tf.constant(0), *map(tf.constant, start)]
        return _session_run(graph, tf.while_loop(goes_on, turn, variables))


def _copied(results: Sequence[Any], behind: Sequence[Any], given: Mapping[str, Any]) -> list[Any]:
    """Copy the operations into the graph that is being built."""
    import tensorflow as tf

    definition = tf.compat.v1.GraphDef()
    for op in behind:
        node = definition.node.add()
        node.CopyFrom(op.node_def)
        # What ran only to be run before it, such as an assertion.
        kept = [name for name in node.input if not name.startswith("^")]
        node.ClearField("input")
        node.input.extend(kept)
        node.ClearField("device")
    reached = {tensor.name for op in behind for tensor in op.inputs}
    made = tf.graph_util.import_graph_def(
        definition,
        input_map={name: value for name, value in given.items() if name in reached},
        return_elements=[tensor.name for tensor in results if tensor.name not in given],
        name="",
    )
    fresh = iter(made or ())
    return [given[t.name] if t.name in given else next(fresh) for t in results]


def _session_run(graph: Any, tensors: Sequence[Any]) -> list[Any]:
    import tensorflow as tf

    settings = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with graph.device("/CPU:0"), tf.compat.v1.Session(graph=graph, config=settings) as session:
        values: list[Any] = session.run(list(tensors))
        return values


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
    needed = _needed(graph, results)
    for op in graph.get_operations():
        if op not in needed.ops:
            continue
        if op.type in _CALLS:
            body = _function(op, "f")
            total.add(_cost(body, needed.outputs_of(op), _passed(op, body, known)))
        elif op.type in _LOOPS:
            total.add(_loop(op, needed.outputs_of(op), known))
        elif op.type in _BRANCHES:
            total.add(_costliest_branch(op, needed.outputs_of(op), known))
        else:
            _add_op(total, op)
    return total


def _add_op(total: GraphCost, op: Any) -> None:
    try:
        cost = op_flops(op)
    except UnknownShape:
        cost = OpCost(None, False)
    if cost.flops is None or any(_functions(op)):
        total.left_out[f"the arithmetic of {op.type}"] += 1
    else:
        total.flops += cost.flops
        if cost.is_product:
            total.products[op.outputs[0].dtype.name] += cost.flops
    try:
        total.moved_bytes += op_bytes(op)
    except UnknownShape:
        total.left_out[f"the bytes of {op.type}"] += 1


def _loop(op: Any, used: set[int], known: dict[str, Any]) -> GraphCost:
    """Return a loop's cost; ``known`` gains its final counters, for the gradient's loop."""
    body, condition = _function(op, "body"), _function(op, "cond")
    counted = loop_turns(op, body, condition, known)
    known.update({op.outputs[at].name: value for at, value in counted.final.items()})
    turns, total = counted.turns, GraphCost()
    if turns is None:
        turns = 1
        total.left_out[f"all turns but one of the loop {op.name}"] += 1
    inner = {name: v for name, v in _passed(op, body, known).items() if name in _kept(body)}
    total.add(_cost(body, _carried(body, condition, used), inner), turns)
    total.add(_cost(condition, (0,), {}), turns + 1)
    return total


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
    costs = [_cost(branch, used, _passed(op, branch, known, first=1)) for branch in _functions(op)]
    chosen = max(costs, key=lambda cost: (cost.flops, cost.moved_bytes))
    if any(cost.flops != chosen.flops for cost in costs):
        chosen.left_out[f"the cheaper branches of {op.type}, the costliest taken to run"] += 1
    return chosen


def _passed(op: Any, body: Any, known: Known, *, first: int = 0) -> Known:
    """Return the known values as a called function sees them."""
    given = op.inputs[first:]
    found = static_values(given, known)
    pairs = zip(body.inputs, given, strict=True)
    return {inner.name: found[outer.name] for inner, outer in pairs if outer.name in found}


@dataclass
class _Needed:
    ops: set[Any]
    tensors: set[str]

    def outputs_of(self, op: Any) -> set[int]:
        return {at for at, tensor in enumerate(op.outputs) if tensor.name in self.tensors}


def _needed(graph: Any, results: Iterable[int]) -> _Needed:
    """Return the operations that lead to these results or must run for their own sake."""
    found = _Needed(set(), {graph.outputs[at].name for at in results})
    waiting = [graph.outputs[at].op for at in results]
    waiting += list(getattr(graph, "control_outputs", ()))
    while waiting:
        op = waiting.pop()
        if op in found.ops:
            continue
        found.ops.add(op)
        found.tensors.update(tensor.name for tensor in op.inputs)
        waiting += [tensor.op for tensor in op.inputs]
        waiting += list(op.control_inputs)
    return found


def _inputs_reached(graph: Any, results: Iterable[int]) -> set[int]:
    ops = _needed(graph, results).ops
    return {at for at, tensor in enumerate(graph.inputs) if tensor.op in ops}


def _functions(op: Any) -> list[Any]:
    graphs = []
    for attribute in op.op_def.attr:
        if attribute.type == "func":
            graphs.append(_function(op, attribute.name))
        elif attribute.type == "list(func)":
            graphs += [_graph_of(op, held.name) for held in op.get_attr(attribute.name)]
    return graphs


def _function(op: Any, attribute: str) -> Any:
    return _graph_of(op, op.get_attr(attribute).name)


def _graph_of(op: Any, name: str) -> Any:
    return op.graph._get_function(name).graph
