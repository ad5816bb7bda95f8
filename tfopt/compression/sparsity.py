"""How sparse a model's kernels are: the rows of a pruning report, as data.

Guarantees: counts are read off the weights themselves, never derived from a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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


def count_zeros(*variables: Any) -> tuple[int, int]:
    """How many weights the variables have, and how many of them are zero."""
    import numpy as np

    values = [np.asarray(variable.numpy()) for variable in variables]
    weights = sum(value.size for value in values)
    return weights, weights - sum(int(np.count_nonzero(value)) for value in values)
