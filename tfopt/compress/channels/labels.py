"""Labels of channels: which channels belong together, and which must be kept."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tfopt.compress.kernels import Matches
from tfopt.compress.model_graph import Array

Shape = tuple[int | None, ...]
_SHARED = "{} is shared, and is called with channels that are kept"
NONE = -1
"""No removable channel: inputs, and outputs of unknown layers."""


class Labels:
    """Numbers of channels that are united or pinned, and the groups that come of it."""

    def __init__(self) -> None:
        self._count = 0
        self._pairs: list[Array] = []
        self._pinned: list[tuple[Array, str]] = []

    def __len__(self) -> int:
        return self._count

    def new(self, count: int) -> Array:
        """Return new labels. A single channel is never removed, and has none."""
        if count < 2:
            return np.full(count, NONE)
        self._count += count
        return np.arange(self._count - count, self._count)

    def pin(self, labels: Array, reason: str) -> None:
        """Keep channels, and all that are united with them."""
        self._pinned.append((labels, reason))

    def unite(self, one: Array, other: Array, reason: str) -> None:
        """Unite channels elementwise; one with NONE is pinned, for ``reason``."""
        pairs = np.stack(np.broadcast_arrays(one, other))
        has_none = (pairs < 0).any(axis=0)
        self.pin(pairs[:, has_none], reason)
        self._pairs.append(pairs[:, ~has_none])

    def roots(self, labels: Array) -> Array:
        """Return the lowest label that is united with each, once all are united."""
        roots: Array = self._roots[labels]
        return roots

    @cached_property
    def _roots(self) -> Array:
        """The root of each label, and NONE as that of NONE."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        one, other = np.concatenate([np.zeros((2, 0), int), *self._pairs], axis=1)
        size = self._count + 1
        graph = coo_array((np.ones(len(one)), (one, other)), shape=(size, size))
        groups = connected_components(graph, directed=False)[1]
        _, lowest, groups = np.unique(groups, return_index=True, return_inverse=True)
        roots = lowest[groups]
        roots[NONE] = NONE
        return np.asarray(roots)

    @cached_property
    def reasons(self) -> dict[int, str]:
        """Why roots must be kept: the first reason of each."""
        reasons: dict[int, str] = {}
        for labels, reason in self._pinned:
            for root in np.unique(self.roots(labels)).tolist():
                reasons.setdefault(root, reason)
        return reasons


@dataclass(frozen=True)
class Flow:
    """A tensor: its shape, and the labels of its positions.

    ``labels`` has the tensor's rank, with size 1 along axes on which they do not vary, such as the
    batch and axes of unknown size.
    """

    shape: Shape
    labels: Array

    @staticmethod
    def of(shape: Shape, labels: Array) -> Flow:
        """Return a tensor with labels, reduced to size 1 along constant axes."""
        for axis, size in enumerate(labels.shape):
            first = labels.take([0], axis) if size else labels
            if size > 1 and bool((labels == first).all()):
                labels = first
        return Flow(tuple(shape), labels)

    @staticmethod
    def plain(shape: Shape) -> Flow:
        """Return a tensor without labels."""
        return Flow(tuple(shape), np.full((1,) * len(shape), NONE))

    @staticmethod
    def on_axis(shape: Shape, axis: int, labels: Array) -> Flow:
        """Return a tensor with labels along one axis."""
        form = [1] * len(shape)
        form[axis] = len(labels)
        return Flow.of(shape, labels.reshape(form))

    @property
    def varying(self) -> tuple[int, ...]:
        """Return the axes along which labels differ."""
        return tuple(axis for axis, size in enumerate(self.labels.shape) if size > 1)

    def axis(self, number: int) -> int:
        """Return an axis counted from the front."""
        return number % len(self.shape)

    def spread(self) -> Array:
        """Return the labels of all positions of an example; all sizes must be known."""
        return np.broadcast_to(self.labels, (1, *(size or 1 for size in self.shape[1:])))


Role = Literal["makes", "takes", "follows"]
Kept = Callable[[Array], int]
"""Returns the number of labels that are kept."""
Change = Callable[[Kept], Mapping[str, Any]]
"""Returns the changes of a layer's configuration."""


@dataclass(frozen=True)
class Cut:
    """The labels of a variable's slices along one axis.

    A layer ``makes`` channels by slices of its outputs, ``takes`` them by slices of its inputs, and
    ``follows`` them by weights per channel.
    """

    layer: Any
    variable: Any
    axis: int
    labels: Array
    role: Role


@dataclass(frozen=True)
class Call:
    """One call of a layer or an operation, with flows in place of tensors."""

    layer: Any
    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shapes: tuple[Shape, ...]
    """The shapes of the outputs."""

    @property
    def title(self) -> str:
        """Return the layer's path and type, for a reason."""
        return f"{self.path} ({type(self.layer).__name__})"

    @property
    def inputs(self) -> tuple[Flow, ...]:
        """Return all flows among the arguments."""
        return tuple(leaf for leaf in self._leaves() if isinstance(leaf, Flow))

    @property
    def constants(self) -> tuple[Any, ...]:
        """Return all other arguments."""
        return tuple(leaf for leaf in self._leaves() if not isinstance(leaf, Flow))

    def _leaves(self) -> list[Any]:
        import keras

        leaves: list[Any] = keras.tree.flatten((self.args, dict(self.kwargs)))
        return leaves

    def named(self, *names: str) -> dict[str, Any]:
        """Return the arguments by name, also positional ones."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def positions(self, *without: int, of: Flow | None = None) -> int | None:
        """Return the product of a tensor's sizes without the batch and some axes; None if unknown.

        The default tensor is the output.
        """
        shape = self.shapes[0] if of is None else of.shape
        skipped = {0, *(axis % len(shape) for axis in without)}
        sizes = [size for axis, size in enumerate(shape) if axis not in skipped]
        known = [size for size in sizes if size is not None]
        return math.prod(known) if len(known) == len(sizes) else None


@dataclass
class Analysis:
    """The labels of a model, and the parts of it that depend on them."""

    chosen: Matches
    labels: Labels = field(default_factory=Labels)
    cuts: dict[tuple[int, int], Cut] = field(default_factory=dict)
    makers: dict[tuple[int, str], tuple[str, Array]] = field(default_factory=dict)
    """Paths of layers that create channels, and the labels, by id and what they are."""
    changes: list[tuple[Any, Change]] = field(default_factory=list)
    work: list[tuple[Any, int | None]] = field(default_factory=list)
    """Kernels, and the number of multiplications per weight for an example."""
    layers: dict[int, tuple[str, Any]] = field(default_factory=dict)
    """Paths and layers or operations, by id."""
    unknown: dict[int, str] = field(default_factory=dict)
    """Why a layer is not followed, by id."""
    _same: dict[Any, Flow] = field(default_factory=dict)

    @property
    def unfollowed(self) -> dict[str, str]:
        """Return the paths of layers with matrices that are not followed, with the reasons."""
        return {
            path: self.unknown[id(layer)]
            for path, layer in map(self.layers.__getitem__, self.unknown)
            if any(len(variable.shape) > 1 for variable in getattr(layer, "weights", ()))
        }

    def make(self, call: Call, count: int, what: str) -> Array:
        """Return the labels of a layer's channels, the same in all of its calls."""
        key = (id(call.layer), what)
        if key not in self.makers:
            labels = self.labels.new(count)
            self.makers[key] = call.path, labels
            if not self.chosen(call.path, call.layer):
                self.labels.pin(labels, f"{call.path} is not chosen by layers=")
        return self.makers[key][1]

    def cut(self, call: Call, variable: Any, axis: int, labels: Array, role: Role) -> None:
        """Record the labels of a variable's slices."""
        if variable is None:
            return
        key = (id(variable), axis % len(variable.shape))
        assert len(labels) == variable.shape[key[1]], (call.title, variable.path, len(labels))
        if key in self.cuts:
            self.labels.unite(self.cuts[key].labels, labels, _SHARED.format(call.path))
        else:
            self.cuts[key] = Cut(call.layer, variable, key[1], labels, role)

    def change(self, call: Call, change: Change) -> None:
        """Record a change of a layer's configuration."""
        self.changes.append((call.layer, change))

    def along(self, call: Call, flow: Flow, axis: int) -> Array:
        """Return the labels along one axis; pin those that vary along others."""
        axis = flow.axis(axis)
        size = flow.shape[axis]
        if set(flow.varying) - {axis} or size is None:
            self.pin(flow, f"{call.title} mixes positions over which its channels are spread")
            return np.full(size or 1, NONE)
        return np.broadcast_to(flow.labels.reshape(-1), (size,))

    def pin(self, flow: Flow, reason: str) -> None:
        """Keep all channels of a tensor."""
        self.labels.pin(flow.labels, reason)

    def straight(self, call: Call, shape: Shape, labels: Array) -> Flow:
        """Return a tensor whose labels vary along one axis; unite them along the others."""
        flow = Flow.of(shape, labels)
        for axis in flow.varying[:-1]:
            reason = f"{call.title} joins them with channels that are kept"
            self.labels.unite(labels.take([0], axis), labels, reason)
            labels = labels.take([0], axis)
        return Flow.of(shape, labels)

    def same(self, key: Any, flow: Flow, path: str) -> None:
        """Unite the flows with the same key, of a layer at ``path`` with several calls."""
        if key in self._same:
            self.labels.unite(self._same[key].labels, flow.labels, _SHARED.format(path))
        else:
            self._same[key] = flow

    def shape_after(self, flow: Flow, kept: Kept) -> Shape:
        """Return the shape of a tensor after the removal."""
        return tuple(
            size if axis not in flow.varying else kept(flow.labels.reshape(-1))
            for axis, size in enumerate(flow.shape)
        )


@dataclass(frozen=True)
class ChannelBlock:
    """Units of the layers at ``paths``, any number of which may be removed.

    A unit is removed as a whole: one channel of each of these layers, or several.
    """

    paths: tuple[str, ...]
    units: Array
    channels_a_unit: int
    """The greatest common divisor of the layers' channels per unit."""
    reason: str | None
    """Why none may be removed, or None."""


def find_blocks(analysis: Analysis) -> tuple[ChannelBlock, ...]:
    """Return all blocks of a model, in the order of its layers."""
    made_by: dict[int, list[int]] = defaultdict(list)
    channels: dict[int, int] = defaultdict(int)
    paths = [path for path, _ in analysis.makers.values()]
    for number, (_, labels) in enumerate(analysis.makers.values()):
        roots, counts = np.unique(analysis.labels.roots(labels), return_counts=True)
        for root, count in zip(roots.tolist(), counts.tolist(), strict=True):
            if root >= 0:
                made_by[root].append(number)
                channels[root] = math.gcd(channels[root], count)
    together: dict[tuple[tuple[int, ...], str | None], list[int]] = defaultdict(list)
    for root, numbers in made_by.items():
        together[tuple(numbers), analysis.labels.reasons.get(root)].append(root)
    return tuple(
        ChannelBlock(
            tuple(dict.fromkeys(paths[number] for number in numbers)),
            np.array(units),
            math.gcd(*(channels[unit] for unit in units)),
            reason or (None if len(units) > 1 else "all its channels belong together"),
        )
        for (numbers, reason), units in sorted(together.items(), key=lambda item: item[0][0])
    )
