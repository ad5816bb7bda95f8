"""The rows of the reports on pruned and clustered models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfopt.report.format import by_reason, left_alone, table

# A share of zeros that comes from a mask: trained kernels have nearly none.
ZEROS_MEANT = 0.1


@dataclass(frozen=True)
class LayerSparsity:
    """One kernel (or one layer left alone) of a model.

    Attributes:
        path: The path of the kernel or layer.
        weights: The number of weights.
        zeros: The number of zeros.
        target: The final sparsity of the schedule; None without a mask.
        remark: Why there is no mask, or a remark on it.
    """

    path: str
    weights: int
    zeros: int
    target: float | None
    remark: str | None

    @property
    def sparsity(self) -> float | None:
        """Return the fraction of zeros; None without weights."""
        return self.zeros / self.weights if self.weights else None


class SparsityReport(tuple[LayerSparsity, ...]):
    """The rows of a model, as a tuple that prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        masked = [row for row in self if row.target is not None]
        cells = [
            (
                row.path,
                f"{row.weights:,}",
                f"{row.sparsity or 0:.1%}",
                f"{row.target or 0:.1%}",
                row.remark or "",
            )
            for row in masked
        ]
        if len(masked) > 1:
            weights = sum(row.weights for row in masked)
            cells.append(("together", f"{weights:,}", f"{sparsity_of(masked):.1%}", "", ""))
        left = [(row.path, row.remark or "") for row in self if row.target is None]
        return "\n".join([*table(("", "weights", "zeros", "target", ""), cells), *left_alone(left)])


@dataclass(frozen=True)
class LayerClusters:
    """One kernel (or one layer left alone) of a model.

    Attributes:
        path: The path of the kernel or layer.
        weights: The number of weights.
        values: The number of different values.
        clusters: The allowed number of values; None without clusters.
        remark: Why there are no clusters, or a remark on them.
    """

    path: str
    weights: int
    values: int
    clusters: int | None
    remark: str | None

    @property
    def bits(self) -> int | None:
        """Return the bits of a weight as an index of values; None without weights."""
        return max(1, (self.values - 1).bit_length()) if self.weights else None


class ClustersReport(tuple[LayerClusters, ...]):
    """The rows of a model, as a tuple that prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        cells = [
            (row.path, f"{row.weights:,}", f"{row.values:,}", f"{row.clusters}", row.remark or "")
            for row in self
            if row.clusters is not None
        ]
        left = [(row.path, row.remark or "") for row in self if row.clusters is None]
        head = ("", "weights", "values", "at most", "")
        return "\n".join([*table(head, cells), *left_alone(left)])


def count_zeros(*variables: Any) -> tuple[int, int]:
    """Return the numbers of weights and of zeros in variables."""
    values = [np.asarray(variable.numpy()) for variable in variables]
    weights = sum(value.size for value in values)
    return weights, weights - sum(int(np.count_nonzero(value)) for value in values)


def has_many_zeros(*variables: Any) -> bool:
    """Return whether variables have so many zeros that they come from a mask."""
    weights, zeros = count_zeros(*variables)
    return zeros >= max(1, ZEROS_MEANT * weights)


def sparsity_of(rows: Iterable[LayerSparsity]) -> float:
    """Return the fraction of zeros over all rows."""
    rows = list(rows)
    return sum(row.zeros for row in rows) / sum(row.weights for row in rows)


def count_values(variable: Any) -> int:
    """Return the number of different values of a variable."""
    return len(np.unique(np.asarray(variable.numpy())))


def left_alone_note(left: Iterable[tuple[str, str | None]]) -> str:
    """Return the end of a note with paths and reasons; "" without any."""
    reasons = by_reason((path, reason or "") for path, reason in left)
    return f"; left alone: {', '.join(reasons)}" if reasons else ""
