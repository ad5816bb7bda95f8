"""Read plain values, those of TOML and JSON, into frozen dataclasses by their type hints.

Strict: a value of another type, a missing or unknown key and a number that is not finite are
refused with the path of the key, such as ``chain[2].mode``. Only a whole number does for a number.
What :func:`to_plain` writes, :func:`from_plain` reads back to an equal value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from tfopt.errors import UserError, default_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")
KeyPath = Sequence[str | int]

_LONGEST_SHOWN = 80
_UNKNOWN = "unexpected_keyword_argument"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


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

    # JSON, since its arrays may become tuples. It holds no half of a surrogate pair.
    text = json.dumps([value], ensure_ascii=False).encode("utf-8", "replace")
    try:
        made: tuple[T] = _reader(kind).validate_json(text)  # type: ignore[arg-type]
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        raise _refusal(kind, value, mistakes, place) from error
    return made[0]


def to_plain(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    plain = {}
    for each in fields(value):
        content, default = getattr(value, each.name), default_of(each)
        if each.init and not (content == default and type(content) is type(default)):
            plain[each.name] = _plain(content, f"{type(value).__name__}.{each.name}")
    return plain


def show(value: object) -> str:
    """Return a value as JSON spells it, shortened."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def dotted(path: KeyPath) -> str:
    """Return a path as people write it: ``chain[2].sparsity``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE_KEY.fullmatch(part) else f'"{part}"'
            text += f".{name}" if text else name
    return text


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
        known, name = _known_keys(kind, path), str(path[-1])
        return DoesNotFit(
            key,
            "is an unknown key",
            expected=", ".join(known),
            received=name,
            fix=did_you_mean(name, known),
        )
    messages = [mistake["msg"] for keys, mistake in found if keys == path]
    expected = dict.fromkeys(each.removeprefix("Input should be ") for each in messages)
    return DoesNotFit(
        key, "does not fit", expected=" or ".join(expected), received=show(first["input"])
    )


def _keys(mistake: ErrorDetails, value: Any) -> tuple[str | int, ...]:
    """Return the path of a mistake in the value; pydantic's also names alternatives of hints."""
    path: list[str | int] = []
    for part in mistake["loc"][1:]:
        inside = value if isinstance(value, Mapping) else {}
        if isinstance(value, list | tuple):
            inside = dict(enumerate(value))
        if part in inside:
            path.append(part)
            value = inside[part]
    return (*path, mistake["loc"][-1]) if mistake["type"] == "missing" else tuple(path)


def _known_keys(kind: Any, path: KeyPath) -> list[str]:
    """Return the keys that may stand where the last part of the path does."""
    kinds = [kind]
    for part in path[:-1]:
        hints = [get_type_hints(each).get(str(part)) for each in kinds]
        kinds = [found for hint in hints for found in _dataclasses(hint)] or kinds
    return [each.name for kind in kinds for each in fields(kind)]


def _dataclasses(hint: Any) -> Iterator[type[Any]]:
    if is_dataclass(hint) and isinstance(hint, type):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses(part)


def _plain(content: Any, name: str) -> Any:
    if isinstance(content, bool | int | float | str):
        return content
    if isinstance(content, tuple):
        return [_plain(item, name) for item in content]
    if is_dataclass(content) and not isinstance(content, type):
        return to_plain(content)
    raise UserError(
        f"{name} cannot be written to a file.",
        expected="a number, text, true or false, or a tuple or options of these",
        received=repr(content),
    )
