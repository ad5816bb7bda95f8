"""How sparse a model's kernels are: the rows of a pruning report, as data.

Guarantees: counts are read off the weights themselves, never derived from a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfopt.compression.tables import left_alone, table

# A trained kernel has no zeros but those that something has put there.
ZEROS_MEANT = 0.1


@dataclass(frozen=True)
class LayerSparsity:
    """One kernel (or one layer left alone) of a model.

    Attributes:
        path: Names from the model down to the kernel.
        weights: How many weights it has.
        zeros: How many of them are zero now.
        target: The sparsity its schedule ends at; None: it has no mask.
        remark: Why it has no mask, or what to know about the one it has.
    """

    path: str
    weights: int
    zeros: int
    target: float | None
    remark: str | None

    @property
    def sparsity(self) -> float | None:
        """The fraction of zeros; None without weights."""
        return self.zeros / self.weights if self.weights else None


class SparsityReport(tuple[LayerSparsity, ...]):
    """The rows of a model, as a tuple that prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        masked = [row for row in self if row.target is not None]
        rows = [_cells(row) for row in masked]
        zeros, weights = sum(row.zeros for row in masked), sum(row.weights for row in masked)
        if len(masked) > 1:
            rows.append(("together", f"{weights:,}", f"{zeros / weights:.1%}", "", ""))
        left = [(row.path, row.remark or "") for row in self if row.target is None]
        return "\n".join([*table(("", "weights", "zeros", "target", ""), rows), *left_alone(left)])


def _cells(row: LayerSparsity) -> tuple[str, ...]:
    zeros, target = f"{row.sparsity or 0:.1%}", f"{row.target or 0:.1%}"
    return (row.path, f"{row.weights:,}", zeros, target, row.remark or "")


def count_zeros(*variables: Any) -> tuple[int, int]:
    """How many weights the variables have, and how many of them are zero."""
    import numpy as np

    values = [np.asarray(variable.numpy()) for variable in variables]
    weights = sum(value.size for value in values)
    return weights, weights - sum(int(np.count_nonzero(value)) for value in values)
