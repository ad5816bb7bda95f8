"""Choose where to cut a graph of layers, so that little is kept for its gradient at a time.

What is computed again is kept only where a later part uses it; while the gradient of one part is
computed, all of that part is there. A part that gives an output of the model, or holds a large
model itself, is not computed again as a whole. Sizes are those of the layers' outputs for one
example, in elements, an unknown length taken as one: what a layer keeps inside is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# How many parts of equal size are tried.
_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# A model inside with more than this share of all outputs is cut itself.
_LARGE = 0.25


@dataclass(frozen=True)
class Part:
    """Nodes that run one after another, and whether they are computed again."""

    nodes: tuple[Any, ...]
    again: bool


@dataclass(frozen=True)
class Cuts:
    """A graph in parts, and what they hold: elements of one example.

    ``inner`` are the models inside that are to be cut themselves.
    """

    parts: tuple[Part, ...]
    inner: tuple[Any, ...]
    whole: int
    kept: int
    largest: int

    @property
    def saves(self) -> bool:
        """Return whether the graph is worth cutting."""
        return bool(self.inner) or self.kept + self.largest < self.whole


def _nodes_in_order(model: Any) -> list[Any]:
    """Return the nodes of a Functional model as Keras runs them, without its inputs."""
    by_depth = model._nodes_by_depth
    ordered = (node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth])
    return [node for node in ordered if node.operation and not node.is_input]


def _size_of(node: Any) -> int:
    """Return the elements that a node gives; of a model all that its layers give."""
    inner = graph_of(node.operation)
    if inner is not None:
        return sum(map(_size_of, _nodes_in_order(inner)))
    return sum(math.prod(length or 1 for length in each.shape[1:]) for each in node.outputs)


def graph_of(layer: Any) -> Any:
    """Return the Functional model that a layer is, or has; None where there is no graph to see."""
    import keras

    if isinstance(layer, keras.Sequential):
        return layer._functional
    return layer if hasattr(layer, "_nodes_by_depth") else None


def cuts_of(model: Any) -> Cuts:
    """Return the cuts of a Functional model after which the least is there at a time."""
    nodes = _nodes_in_order(model)
    sizes = [_size_of(node) for node in nodes]
    whole = sum(sizes)
    outputs = {id(tensor) for tensor in model.outputs}
    inner = {
        id(node.operation): node.operation
        for node, size in zip(nodes, sizes, strict=True)
        if size > _LARGE * whole and graph_of(node.operation) is not None
    }
    alone = [
        id(node.operation) in inner or any(id(tensor) in outputs for tensor in node.outputs)
        for node in nodes
    ]
    last_use = _last_uses(nodes)
    candidates = []
    for count in _PARTS:
        ends = _cheapest(sizes, alone, last_use, max(whole // count, 1))
        candidates.append(_cuts(nodes, sizes, alone, last_use, ends, tuple(inner.values())))
    return min(candidates, key=lambda cuts: cuts.kept + cuts.largest)


def _last_uses(nodes: Sequence[Any]) -> list[int]:
    """Return for each node the place of the last node that takes what it gives."""
    maker = {id(tensor): place for place, node in enumerate(nodes) for tensor in node.outputs}
    last = list(range(len(nodes)))
    for place, node in enumerate(nodes):
        for tensor in node.input_tensors:
            if id(tensor) in maker:
                last[maker[id(tensor)]] = max(last[maker[id(tensor)]], place)
    return last


def _cheapest(
    sizes: Sequence[int], alone: Sequence[bool], last_use: Sequence[int], most: int
) -> list[int]:
    """Return the ends of the parts, none larger than ``most``, of which the least is kept."""
    count = len(sizes)
    dropped: list[list[int]] = [[] for _ in range(count)]
    for place, last in enumerate(last_use):
        dropped[last].append(place)
    least: list[float] = [0.0, *[math.inf] * count]
    begin = [0] * (count + 1)
    for start in range(count):
        held = used_later = 0
        for end in range(start, count):
            if end > start and (alone[end] or alone[start] or held + sizes[end] > most):
                break
            held += sizes[end]
            used_later += sizes[end]
            used_later -= sum(sizes[place] for place in dropped[end] if place >= start)
            cost = least[start] + (held if alone[start] else used_later)
            if cost < least[end + 1]:
                least[end + 1], begin[end + 1] = cost, start
    ends = []
    place = count
    while place:
        ends.append(place)
        place = begin[place]
    return ends[::-1]


def _cuts(
    nodes: Sequence[Any],
    sizes: Sequence[int],
    alone: Sequence[bool],
    last_use: Sequence[int],
    ends: Sequence[int],
    inner: tuple[Any, ...],
) -> Cuts:
    parts, kept, largest = [], 0, 0
    start = 0
    for end in ends:
        single = nodes[start].operation if end - start == 1 else None
        if single in inner:
            parts.append(Part((nodes[start],), False))
            start = end
            continue
        held = sum(sizes[start:end])
        # Of a layer without layers inside, what is kept is what it takes and gives.
        worth = not alone[start] and (single is None or bool(getattr(single, "_layers", ())))
        # The gradient of the last part comes first: it would be computed twice in a row.
        parts.append(Part(tuple(nodes[start:end]), worth and not all(alone[end:])))
        largest = max(largest, held)
        kept += sum(sizes[place] for place in range(start, end) if last_use[place] >= end)
        start = end
    return Cuts(tuple(parts), inner, sum(sizes), kept, largest)
