"""Every channel as a label: which channels are one and the same, and which must stay.

Guarantees: labels that were united stay together; a label that was pinned stays pinned, and so
does everything ever united with it, with the first reason given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

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
        """Labels that were not there before. A lone channel is never removed, so it has none."""
        if count < 2:
            return np.full(count, NONE)
        made = np.arange(len(self), len(self) + count)
        self._parent = np.concatenate([self._parent, made])
        return made

    def roots(self, labels: Array) -> Array:
        """The one label that stands for all that each was united with."""
        found = labels
        if not (labels >= 0).any():
            return found
        while True:
            above = np.where(found >= 0, self._parent[found], NONE)
            if np.array_equal(above, found):
                return found
            found = above

    def free(self, labels: Array) -> Array:
        """The roots of what may be removed; the rest is NONE."""
        roots = self.roots(labels)
        pinned = np.fromiter(self._reasons, dtype=np.int64, count=len(self._reasons))
        return np.where(np.isin(roots, pinned), NONE, roots)

    def reason(self, root: int) -> str | None:
        """Why a root must stay; None if it may go."""
        return self._reasons.get(root)

    def pin(self, labels: Array, reason: str) -> None:
        """Keeps channels whole from now on."""
        for root in np.unique(self.roots(labels)):
            if root >= 0:
                self._reasons.setdefault(int(root), reason)

    def unite(self, one: Array, other: Array, reason: str) -> None:
        """Makes channels one, position by position; beside NONE a channel stays, for ``reason``."""
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
        """Labels that broadcast to a shape, brought to their smallest form."""
        for axis, size in enumerate(labels.shape):
            first = labels.take([0], axis) if size else labels
            if size > 1 and bool((labels == first).all()):
                labels = first
        return Flow(tuple(shape), labels)

    @staticmethod
    def plain(shape: Shape) -> Flow:
        """A tensor without labels."""
        return Flow(tuple(shape), np.full((1,) * len(shape), NONE))

    @staticmethod
    def on_axis(shape: Shape, axis: int, labels: Array) -> Flow:
        """A tensor whose labels stand along one axis."""
        form = [1] * len(shape)
        form[axis] = len(labels)
        return Flow.of(shape, labels.reshape(form))

    @property
    def varying(self) -> tuple[int, ...]:
        """The axes along which labels differ."""
        return tuple(axis for axis, size in enumerate(self.labels.shape) if size > 1)

    def axis(self, number: int) -> int:
        """An axis counted from the front."""
        return number % len(self.shape)

    def spread(self) -> Array:
        """The labels in full, one a position, for an example; every size must be known."""
        return np.broadcast_to(self.labels, (1, *(size or 1 for size in self.shape[1:])))
