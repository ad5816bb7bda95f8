"""Read plain values, those of TOML and JSON, into frozen dataclasses by their type hints.

Strict: a value of another type, a missing or unknown key and a number that is not finite are
refused with the path of the key, such as ``options.threads``. Only a whole number does for a
number. What :func:`to_plain` writes, :func:`from_plain` reads back to an equal value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from tfopt.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")

_LONGEST_SHOWN = 80
_UNKNOWN = "unexpected_keyword_argument"


def from_plain(kind: type[T], value: object) -> T:
    """Make a dataclass out of a mapping that has its fields and no other.

    What the dataclass refuses in its own ``__post_init__`` is that same error.
    """
    from pydantic import ValidationError

    try:
        # JSON, since its arrays may become tuples. It holds no half of a surrogate pair.
        text = json.dumps([value], ensure_ascii=False).encode("utf-8", "replace")
        made: tuple[T] = _reader(kind).validate_json(text)  # type: ignore[arg-type]
    except TypeError as error:  # a date or a time of TOML
        raise UserError("The file does not fit.", received=str(error)) from error
    except ValidationError as error:
        raise _refusal(kind, value, error.errors(include_url=False)) from error
    return made[0]


def to_plain(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    from pydantic import TypeAdapter

    writer: TypeAdapter[Any] = TypeAdapter(type(value))
    return dict(writer.dump_python(value, mode="json", exclude_defaults=True, warnings="error"))


def show(value: object) -> str:
    """Return a value as JSON spells it, shortened."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """Return a fix that names the nearest known word; None where none is near."""
    close = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]}?" if close else None


@cache
def _reader(kind: type[Any]) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    # A dataclass inside another type takes its configuration from there, and needs none itself.
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return TypeAdapter(tuple[kind, ...], config=strict)  # type: ignore[valid-type]


def _refusal(kind: type[Any], value: object, mistakes: list[ErrorDetails]) -> UserError:
    """Say the deepest mistake: of the alternatives in a type hint, the one that got furthest."""
    found = [(_keys(mistake, value), mistake) for mistake in mistakes]
    # A misspelt key is also a missing one.
    path, first = max(found, key=lambda each: (len(each[0]), each[1]["type"] == _UNKNOWN))
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    key = "".join(steps).removeprefix(".")
    refused = first.get("ctx", {}).get("error")
    if isinstance(refused, UserError):
        return refused.under(key)
    if first["type"] == _UNKNOWN:
        known = [each.name for each in fields(kind)] if len(path) == 1 else []
        name, expected = str(path[-1]), ", ".join(known) or None
        fix = did_you_mean(name, known)
        return UserError(f"{key} is an unknown key.", expected=expected, received=name, fix=fix)
    if first["type"] == "missing":
        key = f"{key}.{first['loc'][-1]}".removeprefix(".")
        return UserError(f"{key} is missing.", expected="a value: it has no default")
    messages = [mistake["msg"] for keys, mistake in found if keys == path]
    possible = dict.fromkeys(each.removeprefix("Input should be ") for each in messages)
    return UserError(
        f"{key or 'The file'} does not fit.",
        expected=" or ".join(possible),
        received=show(first["input"]),
    )


def _keys(mistake: ErrorDetails, value: Any) -> list[str | int]:
    """Return the path of a mistake in the value; pydantic's also names alternatives of hints."""
    path: list[str | int] = []
    for part in mistake["loc"][1:]:
        inside = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if isinstance(inside, Mapping) and part in inside:
            path.append(part)
            value = inside[part]
    return path
