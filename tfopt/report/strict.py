"""Read a report's JSON strictly: a mistake is refused with the path of its key.

Nothing is converted silently, and no number is NaN or infinite. Only a key that has a default may
be missing: it came after the first reports were written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from tfopt.errors import UserError
from tfopt.job.plain_values import DoesNotFit, from_plain, join_keys
from tfopt.job.plain_values import show as show

Status = Literal["measured", "no_effect", "failed", "refused", "interrupted"]
_T = TypeVar("_T")


class ReportError(UserError):
    """A value that a report cannot hold; ``key`` is its path, such as ``rows[2].figures``."""

    def __init__(self, key: str, *, expected: str, received: str, fix: str | None = None) -> None:
        self.key = key
        super().__init__(
            f"The report is not valid at {key}." if key else "The report is not valid.",
            expected=expected,
            received=received,
            fix=fix,
        )

    def under(self, place: str) -> ReportError:
        """Return the same refusal, seen from the object that holds this one at ``place``."""
        return ReportError(
            join_keys(place, self.key),
            expected=self.expected or "",
            received=str(self.received),
            fix=self.fix,
        )


def parse_json(text: str) -> Any:
    """Parse JSON, however damaged, or say where it is wrong."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"The report is not JSON from line {error.lineno}, column {error.colno} on.",
            expected="a whole report as tfopt wrote it",
            received=error.msg,
            fix="the file was cut off or edited by hand: restore it, or measure again",
        ) from error
    except RecursionError as error:
        raise ReportError(
            "", expected="a report as tfopt wrote it", received="endless nesting"
        ) from error
    except ValueError as error:  # Python refuses to convert integers of thousands of digits
        raise ReportError("", expected="finite numbers", received=str(error)) from error


def decode(kind: type[_T], value: object, path: str = "") -> _T:
    """Make a dataclass out of a JSON object that has its fields and no other."""
    try:
        return from_plain(kind, value, path)
    except DoesNotFit as error:
        raise ReportError(
            error.key,
            expected=error.expected or "",
            received=str(error.received),
            fix=error.fix,
        ) from error


def require_number(
    key: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> None:
    """Refuse what is not a finite number within the bounds."""
    limits = [
        f"{word} {bound:g}"
        for word, bound in (("at least", least), ("above", above), ("at most", most))
        if bound is not None
    ]
    expected = " ".join(["a finite number", " and ".join(limits)]).strip()
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise ReportError(key, expected=expected, received=show(value))
    too_low = (least is not None and value < least) or (above is not None and value <= above)
    if too_low or (most is not None and value > most):
        raise ReportError(key, expected=expected, received=show(value))


def require_numbers(holder: object, *names: str, **limits: float) -> None:
    """Refuse fields of ``holder`` that are, or hold, what is not a finite number in the limits."""
    for name in names:
        value = getattr(holder, name)
        if isinstance(value, tuple):
            for number, each in enumerate(value):
                require_number(f"{name}[{number}]", each, **limits)
        else:
            require_number(name, value, **limits)


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


def require_reasons(figures: object, names: Sequence[str], reasons: Mapping[str, str]) -> None:
    """Refuse a None among ``names`` without a reason, and a reason for anything else."""
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


def require_status(what: str, status: str, reason: str | None) -> None:
    """Refuse a row or variant that was measured with a reason, and one that was not without."""
    if status == "measured":
        if reason is not None:
            expected = f"null in a {what} that was measured"
            raise ReportError("reason", expected=expected, received=show(reason))
    elif not (reason or "").strip():
        expected = f"the reason why the {what} is {status}"
        raise ReportError("reason", expected=expected, received=show(reason))


def require_gpus_or_reason(gpus: Sequence[str], reason: str | None) -> None:
    """Refuse a machine without GPUs and without the reason, or with both."""
    if bool(gpus) == bool(reason):
        raise ReportError(
            "no_gpu_reason",
            expected="null when there are GPUs, and a reason when there are none",
            received=f"{show(reason)} with {len(gpus)} GPUs",
        )


def require_utc(key: str, text: str) -> None:
    """Refuse what is not a time in UTC."""
    try:
        offset = datetime.fromisoformat(text).utcoffset()
    except ValueError:
        offset = None
    if offset != timedelta(0):
        raise ReportError(
            key, expected="a time in UTC such as 2025-01-31T12:00:00+00:00", received=show(text)
        )


# A list of numbers spread over lines; a JSON string holds no raw line break, so none can match.
_NUMBERS_OVER_LINES = re.compile(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]")


def with_numbers_on_one_line(text: str) -> str:
    """Return indented JSON whose lists of numbers take a line each, not a line a number."""
    return _NUMBERS_OVER_LINES.sub(lambda match: f"[{' '.join(match.group(1).split())}]", text)


def read_document(
    path: str | Path,
    parse: Callable[[str], _T],
    *,
    expected: str,
    refuse: type[UserError] = UserError,
) -> _T:
    """Return what ``parse`` makes of a file's text; its refusals name the file.

    Args:
        path: The file.
        parse: Makes a report of JSON.
        expected: What the file should be.
        refuse: The error that is raised.
    """
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise refuse(
            f"{path} is not a report.", expected="JSON in UTF-8", received=str(error)
        ) from error
    except OSError as error:
        raise refuse(
            f"{path} cannot be read.",
            expected=expected,
            received=f"{type(error).__name__}: {error.strerror or error}",
        ) from error
    except UserError as error:
        raise refuse(
            f"{path}: {error.what}",
            expected=error.expected,
            received=error.received,
            fix=error.fix,
        ) from error


def parse_document(text: str, schema: str, fix: str) -> dict[str, Any]:
    """Return the JSON object of a report, which must be of this schema."""
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ReportError("", expected="an object", received=show(content))
    version = content.get("schema")
    if version != schema:
        raise ReportError("schema", expected=show(schema), received=show(version), fix=fix)
    return content
