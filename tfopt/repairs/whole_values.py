"""What of a step's graph is the same on each replica, since they have exchanged it.

Guarantees: what is noted here was exchanged; the notes live as long as the graph does, and are of
the values themselves, not of what is computed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from functools import cache, wraps
from typing import Any

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
