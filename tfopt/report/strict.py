"""Bound the numbers of a report; the bounds are checked where its file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

Status = Literal["measured", "no_effect", "failed", "refused", "interrupted"]
# A time or a size is never truly 0: a 0 would be a figure that nobody measured.
AboveZero = Annotated[float, Gt(0)]
FromZero = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]


def require_reasons(figures: object, reasons: Mapping[str, str], but: Sequence[str] = ()) -> None:
    """Assert a reason for each field that is None ``but`` some, and for no other."""
    absent = {name for name, value in vars(figures).items() if value is None} - {*but}
    told = {name for name, reason in reasons.items() if reason.strip()}
    assert absent == told, f"a reason for each null and no other: {sorted(absent ^ told)}"
