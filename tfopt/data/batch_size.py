"""How many examples a step takes: what the transforms ask for, against what the data yields.

Guarantees: two transforms that ask for different sizes are refused by both names, in either
order; a size that nothing makes is refused instead of being reported as if it were trained.
"""

from __future__ import annotations

from collections.abc import Iterable

from tfopt.errors import CannotCombine, UserError
from tfopt.job import Transform


def batch_asked(applied: Iterable[Transform]) -> int | None:
    """The global batch that a transform asks for; None where none does, or none knows it yet."""
    sizes = (getattr(transform, "batch_asked", None) for transform in applied)
    return next((size for size in sizes if size is not None), None)


def refuse_another(asking: Transform, size: int | None, applied: Iterable[Transform]) -> None:
    """Refuses ``size`` where another transform asks for batches of another one."""
    for other in applied:
        theirs = batch_asked([other])
        if other is asking or None in (size, theirs) or theirs == size:
            continue
        raise CannotCombine(
            f"{type(other).__name__} and {type(asking).__name__} ask for different batches.",
            expected="one global batch: the examples of a step, over all replicas",
            received=f"{theirs} by {other!r}, {size} by {asking!r}",
            fix="give the size to one of them only, or the same to both",
        )


def refuse_unmade(asked: int, yielded: int) -> None:
    """Refuses a size for data that yields batches of another one, with nothing to change them."""
    if asked != yielded:
        raise UserError(
            f"The data yields batches of {yielded}, and nothing makes batches of {asked} of them.",
            expected="no batch size beside data that yields its own batches, or theirs",
            received=f"{asked}, from Job.batch_size or a transform of the chain",
            fix=f"add Pipeline(batch_size={asked}) to the chain, or batch the data by {asked}",
        )
