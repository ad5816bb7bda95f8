"""Read plain values, those of TOML and JSON, into frozen dataclasses by their type hints.

Strict: a value of another type, a missing or unknown key and a number that is not finite are
refused with the path of the key, such as ``chain[2].mode``. Only a whole number does for a number.
What :func:`to_plain` writes, :func:`from_plain` reads back to an equal value.
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


class DoesNotFit(UserError):
    """A value that its type hint does not allow; ``key`` is its path."""

    def __init__(self, key: str, problem: str, **details: Any) -> None:
        self.key = key
        super().__init__(f"{key or 'The file'} {problem}.", **details)


def from_plain(kind: type[T], value: object, place: str = "") -> T:
    """Make a dataclass out of a mapping that has its fields and no other.

    ``place`` is the path of ``value`` itself, for messages. What the dataclass refuses in its own
    ``__post_init__`` is that same error, with the path in front.
    """
    from pydantic import ValidationError

    try:
        # JSON, since its arrays may become tuples. It holds no half of a surrogate pair.
        text = json.dumps([value], ensure_ascii=False).encode("utf-8", "replace")
        made: tuple[T] = _reader(kind).validate_json(text)  # type: ignore[arg-type]
    except TypeError as error:  # a date or a time of TOML
        raise DoesNotFit(place, "does not fit", received=str(error)) from error
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        raise _refusal(kind, value, mistakes, place) from error
    return made[0]


def to_plain(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    from pydantic import TypeAdapter
    from pydantic_core import PydanticSerializationError

    writer: TypeAdapter[Any] = TypeAdapter(type(value))
    try:
        plain = writer.dump_python(value, mode="json", exclude_defaults=True, warnings="error")
    except PydanticSerializationError as error:
        raise UserError(
            f"{value!r} cannot be written to a file.",
            expected="numbers, texts, true or false, and tuples or options of these",
            received=str(error),
        ) from error
    return dict(plain)


def show(value: object) -> str:
    """Return a value as JSON spells it, shortened."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as people write it: ``chain[2].sparsity``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def join_keys(place: str, key: str) -> str:
    """Return the path of a key inside the object at ``place``."""
    return f"{place}.{key}" if place and key and not key.startswith("[") else place + key


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


def _refusal(kind: type[Any], value: object, mistakes: list[ErrorDetails], place: str) -> UserError:
    """Say the deepest mistake: of the alternatives in a type hint, the one that got furthest."""
    found = [(_keys(mistake, value), mistake) for mistake in mistakes]
    # A misspelt key is also a missing one.
    path, first = max(found, key=lambda each: (len(each[0]), each[1]["type"] == _UNKNOWN))
    key = join_keys(place, dotted(path))
    refused = first.get("ctx", {}).get("error")
    if isinstance(refused, UserError):
        return refused.under(key)
    if first["type"] == "missing":
        missing = "a value: it has no default"
        return DoesNotFit(key, "is missing", expected=missing, received="no such key")
    if first["type"] == _UNKNOWN:
        known = [each.name for each in fields(kind)] if len(path) == 1 else []
        name, expected = str(path[-1]), ", ".join(known) or None
        fix = did_you_mean(name, known)
        return DoesNotFit(key, "is an unknown key", expected=expected, received=name, fix=fix)
    messages = [mistake["msg"] for keys, mistake in found if keys == path]
    possible = dict.fromkeys(each.removeprefix("Input should be ") for each in messages)
    shown = show(first["input"])
    return DoesNotFit(key, "does not fit", expected=" or ".join(possible), received=shown)


def _keys(mistake: ErrorDetails, value: Any) -> tuple[str | int, ...]:
    """Return the path of a mistake in the value; pydantic's also names alternatives of hints."""
    path: list[str | int] = []
    for part in mistake["loc"][1:]:
        inside = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if isinstance(inside, Mapping) and part in inside:
            path.append(part)
            value = inside[part]
    return (*path, mistake["loc"][-1]) if mistake["type"] == "missing" else tuple(path)
