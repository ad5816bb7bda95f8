"""What follows what in a Keras model: its parts by address, and the consumers of each.

Guarantees: an address finds the same part in a model that was loaded from a file; nothing is
changed. Parts are layers, and the operations (``x + y``, ``keras.ops``) of Functional graphs.
Keras is recognised by class names and not imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Address = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A part of a graph among the others: where its result comes from, and who takes it.

    Attributes:
        before: The parts whose results it takes.
        after: The parts that take its result.
        is_output: Whether its result is one of the graph's own.
    """

    before: tuple[Any, ...]
    after: tuple[Any, ...]
    is_output: bool


def kinds(part: Any) -> frozenset[str]:
    """The names of the Keras classes that a layer or an operation is made of."""
    return frozenset(c.__name__ for c in type(part).__mro__ if c.__module__.startswith("keras."))


def is_layer(part: Any) -> bool:
    """Whether a part is a layer, and not an operation."""
    return "Layer" in kinds(part)


def computes_as_keras(part: Any) -> bool:
    """Whether a layer or an operation computes by Keras's own ``call``, and not by a user's."""
    own = next((c for c in type(part).__mro__ if "call" in vars(c)), object)
    return own.__module__.startswith("keras.")


def parts(owner: Any) -> Iterator[tuple[int, Any]]:
    """The parts directly inside a layer, each with its step of an address.

    That is its place: a class that makes its layers itself may give them other names next time.
    """
    graph = _graph(owner)
    if graph is None:
        if is_layer(owner):
            yield from enumerate(owner._flatten_layers(include_self=False, recursive=False))
        return
    yield from enumerate(graph._operations)


def find(model: Any, address: Address) -> Any:
    """The part at an address."""
    part = model
    for place in address:
        part = dict(parts(part))[place]
    return part


def places(owner: Any) -> dict[int, Place] | None:
    """Each part's place, by its id; None where ``owner`` is no graph, so that nobody knows."""
    graph = _graph(owner)
    if graph is None:
        return None
    before: dict[int, list[Any]] = {}
    after: dict[int, list[Any]] = {}
    for nodes in graph._nodes_by_depth.values():
        for node in nodes:
            for parent in node.parent_nodes:
                before.setdefault(id(node.operation), []).append(parent.operation)
                after.setdefault(id(parent.operation), []).append(node.operation)
    ends = {id(tensor._keras_history.operation) for tensor in graph._outputs}
    return {
        id(part): Place(
            tuple(before.get(id(part), ())), tuple(after.get(id(part), ())), id(part) in ends
        )
        for part in graph._operations
    }


def result_tensors(part: Any) -> list[Any] | None:
    """The symbolic results of a part in its graph; None outside graphs."""
    nodes = getattr(part, "_inbound_nodes", None)
    return list(nodes[0].output_tensors) if nodes else None


def _graph(owner: Any) -> Any:
    """What holds the graph of a Functional or built Sequential model; None for anything else."""
    names = kinds(owner)
    if "Sequential" in names:
        return owner._functional
    return owner if "Functional" in names else None
