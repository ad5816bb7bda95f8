"""How often a loop of a graph turns, where constants and its own counters decide that.

Guarantees: None where data decides it; only the few operations behind a loop's condition are run,
on the CPU, in a graph of their own, and never one with state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Known = Mapping[str, Any]
"""Values of tensors, by their names in one graph."""

_MOST_OPS = 300
_MOST_TURNS = 1_000_000


@dataclass(frozen=True)
class Turns:
    """``final`` holds what the counters are in the end, by their place among the variables."""

    turns: int | None
    final: Mapping[int, Any] = field(default_factory=dict)


def loop_turns(op: Any, body: Any, condition: Any, known: Known) -> Turns:
    """Runs the loop with nothing in it but the variables that its condition depends on."""
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
    """The values a loop begins with; empty where one of them is not known."""
    values = static_values([op.inputs[at] for at in places], known)
    found = {at: values.get(op.inputs[at].name) for at in places}
    return {} if any(value is None for value in found.values()) else found


def _is_counter(tensor: Any) -> bool:
    return bool(tensor.dtype.is_integer and tensor.shape.rank == 0)


def static_values(tensors: Iterable[Any], known: Known) -> dict[str, Any]:
    """Those of the tensors that constants and known values decide."""
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
    """These variables and all that decide them over the turns; None where state does too."""
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
    """The operations that make these tensors out of constants and known ones; None if others do."""
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
    """The same operations once more in the graph that is being built."""
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
