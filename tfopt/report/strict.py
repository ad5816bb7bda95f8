"""Reading JSON values into frozen dataclasses by their type hints, strictly.

Guarantees: a value of another type, a key that is missing, unknown or written twice, and a
number that is not finite are refused with the path of the key; nothing is converted silently.
Only a key that has a default may be missing: it came after the first reports were written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tfopt.errors import UserError

_T = TypeVar("_T")
_LONGEST_SHOWN = 80
_SIMPLE = {str: "a string", bool: "true or false", float: "a number", int: "a whole number"}


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

    def below(self, path: str) -> ReportError:
        """The same refusal, seen from the object that holds this one."""
        return ReportError(
            join(path, self.key),
            expected=self.expected or "",
            received=str(self.received),
            fix=self.fix,
        )


def join(path: str, key: str) -> str:
    """The path of a key inside an object."""
    return f"{path}.{key}" if path and key else path or key


def parse_json(text: str) -> Any:
    """Parses JSON, refusing a key written twice."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise UserError(
            f"The report is not JSON from line {error.lineno}, column {error.colno} on.",
            expected="a whole report.json as tfopt wrote it",
            received=error.msg,
            fix="the file was cut off or edited by hand: restore it, or measure again",
        ) from error
    except RecursionError as error:
        raise ReportError(
            "", expected="a report.json as tfopt wrote it", received="endless nesting"
        ) from error
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        # Python refuses to convert integers of thousands of digits.
        raise ReportError("", expected="finite numbers", received=str(error)) from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ReportError(key, expected="each key once", received="the key twice")
        found[key] = value
    return found


def decode(kind: type[_T], value: object, path: str = "") -> _T:
    """Makes a dataclass out of a JSON object that has its fields and no other."""
    if not isinstance(value, dict):
        raise ReportError(path, expected="an object", received=show(value))
    hints = get_type_hints(kind)
    names = {field.name: field.default is MISSING for field in fields(kind)}  # type: ignore[arg-type]
    for key in value:
        if key not in names:
            raise ReportError(
                join(path, key), expected=f"one of {', '.join(names)}", received="an unknown key"
            )
    for name, needed in names.items():
        if needed and name not in value:
            raise ReportError(
                join(path, name), expected="the key to be there", received="no such key"
            )
    there = [name for name in names if name in value]
    parts = {name: _value(hints[name], value[name], join(path, name)) for name in there}
    try:
        return kind(**parts)
    except ReportError as error:
        raise error.below(path) from error


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, choices = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in choices:
            return None
        (only,) = (choice for choice in choices if choice is not NoneType)
        return _value(only, value, path)
    if origin is Literal:
        if value not in choices:
            raise ReportError(
                path, expected=f"one of {', '.join(map(show, choices))}", received=show(value)
            )
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ReportError(path, expected="a list", received=show(value))
        return tuple(_value(choices[0], item, f"{path}[{n}]") for n, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise ReportError(path, expected="an object", received=show(value))
        return {key: _value(choices[1], item, join(path, key)) for key, item in value.items()}
    if is_dataclass(hint):
        return decode(hint, value, path)  # type: ignore[arg-type]
    return _simple(hint, value, path)


def _simple(hint: Any, value: object, path: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = is_number if hint is float else type(value) is hint
    if not fits:
        raise ReportError(path, expected=_SIMPLE[hint], received=show(value))
    if is_number:
        require_number(path, value)
    return value


def require_number(
    key: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
) -> None:
    """Refuses what is not a finite number within the bounds."""
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


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


def show(value: object) -> str:
    """A value as JSON would spell it, shortened."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


# A figure that is missing says why, and one that is there does not: the check for both.


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


# A report's JSON on disk: how it is spelled, and how a file is read that may be anything.

# A list of numbers spread over lines; a JSON string holds no raw line break, so none can match.
_NUMBERS_OVER_LINES = re.compile(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]")


def with_numbers_on_one_line(text: str) -> str:
    """Indented JSON whose lists of numbers take a line each, not a line a number."""
    return _NUMBERS_OVER_LINES.sub(lambda match: f"[{' '.join(match.group(1).split())}]", text)


def text_of(path: str | Path, expected: str) -> str:
    """The text of a file; ``expected`` says what it should be."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not a report.", expected="JSON in UTF-8", received=str(error)
        ) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read.",
            expected=expected,
            received=f"{type(error).__name__}: {error.strerror or error}",
        ) from error
