"""A figure that is missing says why, and one that is there does not: the check for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfopt.report.strict import ReportError, show


def require_reasons(figures: object, names: Sequence[str], reasons: Mapping[str, str]) -> None:
    """Refuses a None among ``names`` without a reason, and a reason for anything else."""
    for name, reason in reasons.items():
        key = f"unavailable.{name}"
        if name not in names:
            expected = f"one of {', '.join(names)}"
            raise ReportError(key, expected=expected, received="an unknown key")
        if getattr(figures, name) is not None:
            expected = f"no reason, since {name} was measured"
            raise ReportError(key, expected=expected, received=show(reason))
        if not reason.strip():
            raise ReportError(key, expected="a reason in words", received=show(reason))
    for name in names:
        if getattr(figures, name) is None and name not in reasons:
            raise ReportError(
                f"unavailable.{name}",
                expected=f"the reason why {name} is null",
                received="no such key",
            )
