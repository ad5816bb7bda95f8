"""How many values a kernel has, and which of its weights share one.

Guarantees: what is told is read off the weights themselves; each row of a kernel clustered by
channels is looked at alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfopt.compression.tables import left_alone, table


@dataclass(frozen=True)
class LayerClusters:
    """One kernel (or one layer left alone) of a model.

    Attributes:
        path: Names from the model down to the kernel.
        weights: How many weights it has.
        values: How many different ones it has now; by channels, the channel with most.
        clusters: How many it may have; None: it is not clustered.
        remark: Why it is not, or what to know about its clusters.
    """

    path: str
    weights: int
    values: int
    clusters: int | None
    remark: str | None

    @property
    def bits(self) -> int | None:
        """Bits for a weight stored as a place in the table of values; None without weights."""
        return max(1, (self.values - 1).bit_length()) if self.weights else None


class ClustersReport(tuple[LayerClusters, ...]):
    """The rows of a model, as a tuple that prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        rows = [
            (row.path, f"{row.weights:,}", f"{row.values:,}", f"{row.clusters}", row.remark or "")
            for row in self
            if row.clusters is not None
        ]
        left = [(row.path, row.remark or "") for row in self if row.clusters is None]
        head = ("", "weights", "values", "at most", "")
        return "\n".join([*table(head, rows), *left_alone(left)])


def most_values(rows: Any) -> int:
    """The number of different values in the row that has most."""
    ordered = np.sort(np.asarray(rows), axis=1)
    return int((ordered[:, 1:] != ordered[:, :-1]).sum(axis=1).max(initial=0)) + 1


def recovered_clusters(rows: Any, clusters: int, zeros: bool) -> Any:
    """The cluster of each weight: equal values are one, parted at the widest gaps if too many.

    With ``zeros``, cluster 0 is that of the zeros, empty in a row without any.
    """
    return np.stack([_recovered(row, clusters, zeros) for row in np.asarray(rows, "float64")])


def _recovered(row: Any, clusters: int, zeros: bool) -> Any:
    values = np.unique(row)
    gaps = np.diff(values)
    widest = np.sort(np.argsort(-gaps, kind="stable")[: clusters - 1])
    index = np.searchsorted((values[widest] + values[widest + 1]) / 2, row, side="right")
    if not zeros:
        return index
    means = [row[index == k].mean() for k in range(len(widest) + 1)]
    zero = int(np.argmin(np.abs(means)))
    if means[zero] != 0 and len(values) <= clusters:
        return index + 1  # a row that never had zeros
    return np.where(index == zero, 0, index + (index < zero))
