"""Read plain values, as TOML and JSON have them, into frozen dataclasses by their type hints.

A value of another type, a missing or unknown key and a number that is not finite raise an error
with the path of the key, such as ``options.threads``. ``from_plain(kind, to_plain(x)) == x``.
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

_UNKNOWN = "unexpected_keyword_argument"


def from_plain(kind: type[T], value: object) -> T:
    """Return a dataclass with the fields of a mapping; errors of its ``__post_init__`` pass on."""
    from pydantic import ValidationError

    try:
        # JSON, since its arrays may become tuples. Lone surrogates are replaced.
        text = json.dumps([value], ensure_ascii=False).encode("utf-8", "replace")
        result: tuple[T] = _reader(kind).validate_json(text)  # type: ignore[arg-type]
    except TypeError as error:  # a date or a time of TOML
        raise UserError("The file does not fit.", received=str(error)) from error
    except ValidationError as error:
        raise _refusal(kind, value, error.errors(include_url=False)) from error
    return result[0]


def to_plain(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    from pydantic import TypeAdapter

    writer: TypeAdapter[Any] = TypeAdapter(type(value))
    return dict(writer.dump_python(value, mode="json", exclude_defaults=True, warnings="error"))


def show(value: object, longest: int = 80) -> str:
    """Return a value as JSON, shortened."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """Return a fix with the closest known name; None without a close one."""
    close = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]}?" if close else None


@cache
def _reader(kind: type[Any]) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    # A dataclass inside another type inherits its configuration.
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return TypeAdapter(tuple[kind, ...], config=strict)  # type: ignore[valid-type]


def _refusal(kind: type[Any], value: object, mistakes: list[ErrorDetails]) -> UserError:
    """Return the deepest mistake: that of the alternative in a type hint that got furthest."""
    placed = [(_keys(mistake, value), mistake) for mistake in mistakes]
    # A misspelt key is also reported as a missing one.
    path, first = max(placed, key=lambda pair: (len(pair[0]), pair[1]["type"] == _UNKNOWN))
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    key = "".join(steps).removeprefix(".")
    refused = first.get("ctx", {}).get("error")
    if isinstance(refused, UserError):
        return refused.under(key)
    if first["type"] == _UNKNOWN:
        known = [field.name for field in fields(kind)] if len(path) == 1 else []
        name, expected = str(path[-1]), ", ".join(known) or None
        fix = did_you_mean(name, known)
        return UserError(f"{key} is an unknown key.", expected=expected, received=name, fix=fix)
    if first["type"] == "missing":
        key = f"{key}.{first['loc'][-1]}".removeprefix(".")
        return UserError(f"{key} is missing.", expected="a value: it has no default")
    messages = [mistake["msg"] for keys, mistake in placed if keys == path]
    possible = dict.fromkeys(message.removeprefix("Input should be ") for message in messages)
    return UserError(
        f"{key or 'The file'} does not fit.",
        expected=" or ".join(possible),
        received=show(first["input"]),
    )


def _keys(mistake: ErrorDetails, value: Any) -> list[str | int]:
    """Return the path of a mistake in the value, without pydantic's names of alternatives."""
    path: list[str | int] = []
    for part in mistake["loc"][1:]:
        inside = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        if isinstance(inside, Mapping) and part in inside:
            path.append(part)
            value = inside[part]
    return path
