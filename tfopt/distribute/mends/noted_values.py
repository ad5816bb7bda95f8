"""What is known of values in a graph from where they were made, kept with the graph.

Guarantees: a note lives as long as its graph, and says which replica of the graph it is of.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Container, Iterator
from functools import cache, wraps
from itertools import combinations
from typing import Any

# Numbers in a loss by which a sum over a replica's examples becomes a mean over its own ones.
#
# Guarantees: only what the graph holds is read. Where the number of examples is known when a step
# is traced (``drop_remainder=True``), Python code has it as a plain number, alone or times the
# steps of a sequence, say: that a sum is divided by such a number is told, also where it may be
# another one. The global batch itself, by which TensorFlow's guide divides, is none.

DIVIDED = {"RealDiv", "DivNoNan", "Div"}
_WALKED_THROUGH = {
    *("Sum", "Mean", "Square", "SquaredDifference", "Sub", "Add", "AddV2", "Neg", "Abs", "Log"),
    *("Mul", "Exp", "Log1p", "Pow", "Sqrt", "Softplus", "Cast", "Identity", "Reshape", "Squeeze"),
    *("Maximum", "Select", "SelectV2", "SparseSoftmaxCrossEntropyWithLogits"),
    *("SoftmaxCrossEntropyWithLogits", *DIVIDED),
}
_MOST_STEPS = 40
_MOST_AXES = 5


def value_of(factor: Any) -> float | None:
    """The number that a factor is, where the graph holds it."""
    import tensorflow as tf

    value = tf.get_static_value(factor)
    return None if value is None or value.size != 1 else float(value)


def is_number(factor: Any, number: int) -> bool:
    """Whether a factor is just this number, or one through it; of 1 nothing can be told."""
    return number != 1 and _is_one_of(value_of(factor), {number})


def is_next_to_nothing(op: Any) -> bool:
    """Whether an operation adds what only keeps a division from one by zero."""
    added = value_of(op.inputs[1]) if op.type in ("Add", "AddV2") else None
    return added is not None and 0 <= added <= 1e-5


def counts_own(factor: Any, sums: list[Any], examples: int | None, replicas: int) -> bool:
    """Whether a factor of these sums may be the number of the values that a replica has in them."""
    value = value_of(factor)
    if not examples or value is None:
        return False
    if replicas > 1 and _is_one_of(value, {examples * replicas}):
        return False
    counts = {examples}.union(*(_counts(each.op, examples) for each in sums))
    return _is_one_of(value, counts - {1})


def divisions_inside(term: Any, examples: int | None, replicas: int) -> list[float]:
    """The numbers of that kind by which each value is divided before a sum is taken of them."""
    if not examples:
        return []
    factors = [each for op in _behind(term.op) for each in _factors(op)]
    values = [value_of(each) for each in factors if counts_own(each, [term], examples, replicas)]
    return [value for value in values if value is not None]


def _is_one_of(value: float | None, numbers: set[int]) -> bool:
    if value is None:
        return False
    return any(math.isclose(abs(value), each, rel_tol=1e-6) for n in numbers for each in (n, 1 / n))


def _factors(op: Any) -> list[Any]:
    if op.type in DIVIDED:
        return [op.inputs[1]]
    return list(op.inputs) if op.type == "Mul" else []


def _counts(op: Any, examples: int) -> set[int]:
    """The examples, times the lengths of any of the other axes that the values have or had."""
    found = {examples}
    for each in _behind(op):
        for tensor in each.inputs:
            dims = [dim for dim in tensor.shape.as_list() or [] if dim] if tensor.shape.rank else []
            own = next((dim for dim in dims if dim % examples == 0), None)
            if own is None or len(dims) > _MOST_AXES:
                continue
            dims.remove(own)
            dims.append(own // examples)
            for some in range(len(dims) + 1):
                found |= {examples * math.prod(taken) for taken in combinations(dims, some)}
    return found


def _behind(op: Any) -> Iterator[Any]:
    """The operations that give a sum its values, one for each value, and the sum itself."""
    left, seen = [op], {op.name}
    while left and len(seen) < _MOST_STEPS:
        each = left.pop(0)
        if each.type not in _WALKED_THROUGH:
            continue
        yield each
        for before in each.inputs:
            if before.op.name not in seen:
                seen.add(before.op.name)
                left.append(before.op)


# What of a step's graph is the same on each replica, since they have exchanged it.
#
# Guarantees: what is noted here was exchanged; the notes live as long as the graph does, and are
# of the values themselves, not of what is computed from them.

_WHOLE, _SUMMED = "tfopt_whole_values", "tfopt_summed_gradients"
_EXCHANGES = ("all_reduce", "all_gather")


@cache
def note_what_is_exchanged() -> None:
    """Notes what replicas exchange from here on, whoever asks them to; twice does no more."""
    import tensorflow as tf

    for name in _EXCHANGES:
        for kind in tf.distribute.ReplicaContext.__mro__:
            if name in vars(kind):
                setattr(kind, name, _noting(vars(kind)[name]))


def _noting(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def exchange(*arguments: Any, **named: Any) -> Any:
        import tensorflow as tf

        found = plain(*arguments, **named)
        for each in tf.nest.flatten(found, expand_composites=True):
            if hasattr(each, "graph"):
                each.graph.add_to_collection(_WHOLE, each.name)
        return found

    return exchange


def note_summed(gradient: Any) -> None:
    """Keeps that this is the gradient of the whole batch."""
    import tensorflow as tf

    for each in tf.nest.flatten(gradient, expand_composites=True):
        each.graph.add_to_collection(_SUMMED, each.name)


def summed_in(graph: Any) -> set[str]:
    """The names of the whole batch's gradients."""
    return set(graph.get_collection(_SUMMED))


def whole_in(graph: Any) -> set[str]:
    """The names of all that is the same on each replica, those gradients among it."""
    return set(graph.get_collection(_WHOLE)) | summed_in(graph)


def behind(values: list[Any], but_for: Container[str] = ()) -> Iterator[Any]:
    """The operations that values were made by, without what only a shape was taken of."""
    left, seen = list(values), set()
    while left:
        each = left.pop()
        if each.name in but_for or each.op.name in seen or each.op.type == "Shape":
            continue
        seen.add(each.op.name)
        yield each.op
        left += each.op.inputs


COUNTED = "tfopt_counted_losses"
"""Losses that are noted as a replica's part of the whole."""
OF_PARTS = "tfopt_values_of_parts"
"""Data that has no row for each example, but one for each of its parts, as ragged data has."""


def note_counted(loss: Any) -> None:
    """Keeps that this loss is a replica's part of the whole."""
    # Each replica of a trace has a thread of its own.
    loss.graph.add_to_collection(COUNTED, (loss.name, threading.get_ident()))


def counted_in(graph: Any) -> set[str]:
    """The names of the losses that were noted as counted, on whichever replica."""
    return {name for name, _ in graph.get_collection(COUNTED)}


def is_counted(term: Any) -> bool:
    """Whether a term was noted as counted, on whichever replica."""
    return term.name in counted_in(term.graph)


def is_of_this_replica(term: Any) -> bool:
    """Whether a term was noted as counted here, and not on another replica of the same graph."""
    return (term.name, threading.get_ident()) in term.graph.get_collection(COUNTED)


def note_of_parts(values: Any) -> None:
    """Keeps that these are values of parts of examples, of which each has as many as it has."""
    values.graph.add_to_collection(OF_PARTS, values.name)


def of_parts_in(graph: Any) -> set[str]:
    """The names of those."""
    return set(graph.get_collection(OF_PARTS))
