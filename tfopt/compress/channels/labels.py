"""Every channel as a label: which channels are one and the same, and which must stay."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tfopt.compress.kernels import Matches

Array = np.ndarray[Any, Any]
Shape = tuple[int | None, ...]
NONE = -1
"""Where a tensor holds no channel that could be removed: inputs, what unknown layers give."""


class Labels:
    """A union-find over channels."""

    def __init__(self) -> None:
        self._parent: Array = np.zeros(0, dtype=np.int64)
        self._reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, count: int) -> Array:
        """Make new labels. A lone channel is never removed, so it has none."""
        if count < 2:
            return np.full(count, NONE)
        made = np.arange(len(self), len(self) + count)
        self._parent = np.concatenate([self._parent, made])
        return made

    def roots(self, labels: Array) -> Array:
        """Return the one label that stands for all that each was united with."""
        found = labels
        if not (labels >= 0).any():
            return found
        while True:
            above = np.where(found >= 0, self._parent[found], NONE)
            if np.array_equal(above, found):
                return found
            found = above

    def reason(self, root: int) -> str | None:
        """Return why a root must stay; None if it may go."""
        return self._reasons.get(root)

    def pin(self, labels: Array, reason: str) -> None:
        """Keep channels whole from now on, and all that they are ever united with."""
        for root in np.unique(self.roots(labels)):
            if root >= 0:
                self._reasons.setdefault(int(root), reason)

    def unite(self, one: Array, other: Array, reason: str) -> None:
        """Unite channels, position by position; beside NONE a channel stays, for ``reason``."""
        one, other = np.broadcast_arrays(one, other)
        lone = (one < 0) != (other < 0)
        if lone.any():
            self.pin(np.where(one < 0, other, one)[lone], reason)
        both = (one >= 0) & (other >= 0)
        pairs = np.stack([self.roots(one[both]), self.roots(other[both])])
        for first, second in np.unique(pairs[:, pairs[0] != pairs[1]], axis=1).T:
            self._join(int(first), int(second))

    def _join(self, first: int, second: int) -> None:
        root, gone = (int(self.roots(np.array([each]))[0]) for each in (first, second))
        if root == gone:
            return
        self._parent[gone] = root
        if gone in self._reasons:
            self._reasons.setdefault(root, self._reasons.pop(gone))


@dataclass(frozen=True)
class Flow:
    """A tensor: its shape, and the label at each position.

    ``labels`` has the tensor's rank, with size 1 along every axis on which they do not vary, the
    batch and axes of unknown size among them.
    """

    shape: Shape
    labels: Array

    @staticmethod
    def of(shape: Shape, labels: Array) -> Flow:
        """Return labels that broadcast to a shape in their smallest form."""
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
        """Return a tensor whose labels stand along one axis."""
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
        """Return the labels in full, one a position, for an example; every size must be known."""
        return np.broadcast_to(self.labels, (1, *(size or 1 for size in self.shape[1:])))


Role = Literal["makes", "takes", "follows"]
Kept = Callable[[Array], int]
"""How many of some labels stay."""
Change = Callable[[Kept], Mapping[str, Any]]
"""The part of a layer's configuration that says how wide it is, for what stays."""


@dataclass(frozen=True)
class Cut:
    """Which channel each slice of a variable belongs to, along one axis.

    A layer ``makes`` channels by its outputs' slices, ``takes`` them by those of its inputs, and
    ``follows`` with weights of each channel's own.
    """

    layer: Any
    variable: Any
    axis: int
    labels: Array
    role: Role


@dataclass(frozen=True)
class Maker:
    """A layer and the width of it that its labels stand for."""

    path: str
    labels: Array


@dataclass(frozen=True)
class Call:
    """One use of a layer or an operation: its arguments hold flows where it had tensors."""

    layer: Any
    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    shapes: tuple[Shape, ...]
    """Of the outputs."""

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

        found: list[Any] = keras.tree.flatten((self.args, dict(self.kwargs)))
        return found

    def named(self, *names: str) -> dict[str, Any]:
        """Return the arguments by name, for what was given by position too."""
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def positions(self, *without: int, of: Flow | None = None) -> int | None:
        """Multiply the sizes of a tensor but for the batch and some axes; default: the output.

        None where one of them is unknown.
        """
        shape = self.shapes[0] if of is None else of.shape
        skipped = {0, *(axis % len(shape) for axis in without)}
        sizes = [size for axis, size in enumerate(shape) if axis not in skipped]
        known = [size for size in sizes if size is not None]
        return math.prod(known) if len(known) == len(sizes) else None


@dataclass
class Analysis:
    """Labels, and everything of a model that depends on them."""

    chosen: Matches
    labels: Labels = field(default_factory=Labels)
    cuts: dict[tuple[int, int], Cut] = field(default_factory=dict)
    makers: dict[tuple[int, str], Maker] = field(default_factory=dict)
    changes: list[tuple[Any, Change]] = field(default_factory=list)
    work: list[tuple[Any, int | None]] = field(default_factory=list)
    """Kernels, and how often an example is multiplied with each of their weights."""
    layers: dict[int, tuple[str, Any]] = field(default_factory=dict)
    """Every layer and operation that is called: path and itself, by identity."""
    unknown: dict[int, str] = field(default_factory=dict)
    """Why a layer is not followed, by its identity."""
    _same: dict[Any, Flow] = field(default_factory=dict)

    @property
    def unfollowed(self) -> dict[str, str]:
        """Return why layers with matrices are not followed: their work is not known."""
        return {
            path: self.unknown[id(layer)]
            for path, layer in map(self.layers.__getitem__, self.unknown)
            if any(len(variable.shape) > 1 for variable in getattr(layer, "weights", ()))
        }

    def make(self, call: Call, count: int, what: str) -> Array:
        """Return the labels of a layer's own channels: the same at each of its calls."""
        key = (id(call.layer), what)
        if key not in self.makers:
            self.makers[key] = Maker(call.path, self.labels.new(count))
            if not self.chosen(call.path, call.layer):
                self.labels.pin(self.makers[key].labels, f"{call.path} is not chosen by layers=")
        return self.makers[key].labels

    def cut(self, call: Call, variable: Any, axis: int, labels: Array, role: Role) -> None:
        """Record what the slices of a variable belong to."""
        if variable is None:
            return
        key = (id(variable), axis % len(variable.shape))
        assert len(labels) == variable.shape[key[1]], (call.title, variable.path, len(labels))
        if key in self.cuts:
            reason = f"{call.path} is shared, and elsewhere meets channels that stay whole"
            self.labels.unite(self.cuts[key].labels, labels, reason)
        else:
            self.cuts[key] = Cut(call.layer, variable, key[1], labels, role)

    def change(self, call: Call, change: Change) -> None:
        """Record what a layer's configuration becomes."""
        self.changes.append((call.layer, change))

    def multiplies(self, kernel: Any, times: int | None) -> None:
        """Count the work of a kernel."""
        self.work.append((kernel, times))

    def along(self, call: Call, flow: Flow, axis: int) -> Array:
        """Return the labels along one axis; those along any other are pinned."""
        axis = flow.axis(axis)
        size = flow.shape[axis]
        if set(flow.varying) - {axis} or size is None:
            self.pin(flow, f"{call.title} mixes positions that its channels are spread over")
            return np.full(size or 1, NONE)
        return np.broadcast_to(flow.labels.reshape(-1), (size,))

    def pin(self, flow: Flow, reason: str) -> None:
        """Keep all channels of a tensor whole."""
        self.labels.pin(flow.labels, reason)

    def straight(self, call: Call, shape: Shape, labels: Array) -> Flow:
        """Return a tensor whose labels vary along one axis: along the others they are united."""
        flow = Flow.of(shape, labels)
        for axis in flow.varying[:-1]:
            reason = f"{call.title} puts them side by side with channels that stay whole"
            self.labels.unite(labels.take([0], axis), labels, reason)
            labels = labels.take([0], axis)
        return Flow.of(shape, labels)

    def same(self, key: Any, flow: Flow, reason: str) -> None:
        """Unite what is met twice under one key."""
        if key in self._same:
            self.labels.unite(self._same[key].labels, flow.labels, reason)
        else:
            self._same[key] = flow

    def shape_after(self, flow: Flow, kept: Kept) -> Shape:
        """Return the shape of a tensor without what is removed."""
        return tuple(
            size if axis not in flow.varying else kept(flow.labels.reshape(-1))
            for axis, size in enumerate(flow.shape)
        )


@dataclass(frozen=True)
class Block:
    """Units that the same layers make: any number of them may go, the rest stays.

    A unit is what can only go together: one channel of each of these layers, or several.
    """

    makers: tuple[Maker, ...]
    units: Array
    channels_a_unit: int
    """What every layer's number of channels a unit is a multiple of."""
    reason: str | None
    """Why none may go; None if they may."""


def find_blocks(analysis: Analysis) -> tuple[Block, ...]:
    """Return all blocks of a model, in the order of its layers."""
    made_by: dict[int, list[int]] = defaultdict(list)
    channels: dict[int, int] = defaultdict(int)
    makers = list(analysis.makers.values())
    for number, maker in enumerate(makers):
        roots, counts = np.unique(analysis.labels.roots(maker.labels), return_counts=True)
        for root, count in zip(roots.tolist(), counts.tolist(), strict=True):
            if root >= 0:
                made_by[root].append(number)
                channels[root] = math.gcd(channels[root], count)
    together: dict[tuple[tuple[int, ...], str | None], list[int]] = defaultdict(list)
    for root, numbers in made_by.items():
        together[tuple(numbers), analysis.labels.reason(root)].append(root)
    return tuple(
        Block(
            tuple(makers[number] for number in numbers),
            np.array(units),
            math.gcd(*(channels[unit] for unit in units)),
            reason or (None if len(units) > 1 else "all its channels belong together"),
        )
        for (numbers, reason), units in sorted(together.items(), key=lambda item: item[0][0])
    )
