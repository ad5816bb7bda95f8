"""Bound the numbers of a report, and name what it refuses to hold.

The bounds are checked where JSON is read: a report's file, and what a worker process has measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from tfopt.job.plain_values import DoesNotFit, from_plain, join_keys
from tfopt.job.plain_values import show as show

decode = from_plain

Status = Literal["measured", "no_effect", "failed", "refused", "interrupted"]
# A time or a size is never truly 0: a 0 would be a figure that nobody measured.
AboveZero = Annotated[float, Gt(0)]
FromZero = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]


class ReportError(DoesNotFit):
    """A value that a report cannot hold; ``key`` is its path, such as ``variants[2].processes``."""

    def __init__(self, key: str, *, expected: str | None, received: object) -> None:
        super().__init__(key, "is not valid", expected=expected, received=received)

    def under(self, place: str) -> ReportError:
        """Return the same refusal, seen from the object that holds this one at ``place``."""
        key = join_keys(place, self.key)
        return ReportError(key, expected=self.expected, received=self.received)


def require_reasons(figures: object, names: Sequence[str], reasons: Mapping[str, str]) -> None:
    """Refuse a None among ``names`` without a reason, and a reason for anything else."""
    absent = {name for name in names if getattr(figures, name) is None}
    for name in sorted(absent ^ {name for name, reason in reasons.items() if reason.strip()}):
        raise ReportError(
            f"unavailable.{name}",
            expected="a reason for each figure that is null, and for no other",
            received=show(reasons.get(name)),
        )
