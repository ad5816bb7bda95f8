"""Between frozen dataclasses and the plain values that TOML and JSON can hold.

Guarantees: what ``to_plain`` writes, ``from_plain`` reads back to an equal value, or
``to_plain`` refuses it; a value that does not fit the type hint of its field is refused with
its place in the file, and so is one that the dataclass itself refuses when it is made.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tfopt.errors import UserError
from tfopt.toml_lines import KeyPath, Source

T = TypeVar("T")

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    Any: "any value",
}
_DOES_NOT_FIT = object()


def to_plain(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    plain = {}
    for each in fields(value):
        content = getattr(value, each.name)
        default = _default(each)
        if each.init and not (content == default and type(content) is type(default)):
            plain[each.name] = _plain(content, f"{type(value).__name__}.{each.name}")
    return plain


def from_plain(kind: type[T], table: Mapping[str, Any], source: Source, path: KeyPath) -> T:
    """Makes a dataclass from a table, by the type hints of its fields."""
    assert is_dataclass(kind)
    known = {each.name: each for each in fields(kind) if each.init}
    for name in table:
        if name not in known:
            raise unknown_key(name, known, source, path, owner=kind.__name__)
    for name, each in known.items():
        if name not in table and _default(each) is MISSING:
            raise UserError(
                f"{source.where((*path, name))} is missing.",
                expected=f"a value for {name}, which {kind.__name__} has no default for",
            )
    hints = get_type_hints(kind)
    values = {name: coerce(table[name], hints[name], source, (*path, name)) for name in table}
    try:
        return kind(**values)
    except UserError as error:
        guilty = _guilty(kind, values, known, error)
        place = source.where(path if guilty is None else (*path, guilty))
        raise UserError(
            f"{place}: {error.what}",
            expected=error.expected,
            received=error.received,
            fix=error.fix,
        ) from error


def coerce(value: Any, hint: Any, source: Source, path: KeyPath) -> Any:
    """The value as its type hint wants it, or an error that says where it stands."""
    options = _alternatives(hint)
    table_kinds = [kind for kind in options if isinstance(kind, type) and is_dataclass(kind)]
    if isinstance(value, Mapping) and table_kinds:
        # The first kind decides, so that an error inside the table can name its key.
        return from_plain(table_kinds[0], value, source, path)
    for option in options:
        fitted = _fit_one(value, option, source, path)
        if fitted is not _DOES_NOT_FIT:
            return fitted
    raise UserError(
        f"{source.where(path)} does not fit.",
        expected=describe(hint),
        received=repr(value),
    )


def describe(hint: Any) -> str:
    """A type hint in words."""
    words: list[str] = []
    for option in _alternatives(hint):
        if get_origin(option) is Literal:
            words += [_as_toml(choice) for choice in get_args(option)]
        elif get_origin(option) is tuple:
            words.append(f"an array of {_describe_items(get_args(option))}")
        elif is_dataclass(option):
            words.append(f"a table ({', '.join(each.name for each in fields(option))})")
        elif option in _WORDS:
            words.append(_WORDS[option])
    # None is not among them: a file says it by leaving the key out.
    return " or ".join(words) or "nothing that a file can hold"


def unknown_key(
    name: str, known: Mapping[str, Any], source: Source, path: KeyPath, *, owner: str
) -> UserError:
    """The error for a key that nobody reads."""
    close = get_close_matches(name.lower(), list(known), n=1)
    return UserError(
        f"{source.where((*path, name))} is not a key of {owner}.",
        expected=", ".join(known) or f"{owner} has no keys",
        received=name,
        fix=f"did you mean {close[0]}?" if close else None,
    )


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


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _alternatives(hint: Any) -> list[Any]:
    """The parts of a union; float comes last, since it would take whole numbers too."""
    if get_origin(hint) not in (Union, types.UnionType):
        return [hint]
    return sorted(get_args(hint), key=lambda option: option is float)


def _fit_one(value: Any, option: Any, source: Source, path: KeyPath) -> Any:
    origin = get_origin(option)
    if origin is Literal:
        # True == 1 in Python, and a switch is no number.
        same = [x for x in get_args(option) if x == value and type(x) is type(value)]
        return same[0] if same else _DOES_NOT_FIT
    if origin is tuple and isinstance(value, list):
        return _fit_items(value, get_args(option), source, path)
    if option is Any:
        return value
    if option is float and type(value) is int:
        return float(value)
    if option in (bool, int, float, str) and type(value) is option:
        return value
    return _DOES_NOT_FIT


def _fit_items(
    value: list[Any], hints: tuple[Any, ...], source: Source, path: KeyPath
) -> tuple[Any, ...]:
    if hints[-1:] == (Ellipsis,):
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        raise UserError(
            f"{source.where(path)} has the wrong length.",
            expected=f"{len(hints)} values",
            received=repr(value),
        )
    items = zip(value, hints, strict=True)
    return tuple(coerce(item, hint, source, (*path, i)) for i, (item, hint) in enumerate(items))


def _describe_items(hints: tuple[Any, ...]) -> str:
    if hints[-1:] == (Ellipsis,):
        return f"({describe(hints[0])})"
    return ", ".join(f"({describe(hint)})" for hint in hints)


def _as_toml(choice: Any) -> str:
    if isinstance(choice, bool):
        return str(choice).lower()
    return f'"{choice}"' if isinstance(choice, str) else str(choice)


def _guilty(
    kind: type[Any], values: Mapping[str, Any], known: Mapping[str, Field[Any]], error: UserError
) -> str | None:
    """The one key an error is about: without it the same error does not come; else None."""
    suspects = [
        name
        for name in values
        if _default(known[name]) is not MISSING
        and _complaint(kind, {k: v for k, v in values.items() if k != name}) != error.what
    ]
    if not suspects:
        # A key without a default cannot be left out to try; the error then names it.
        suspects = [name for name in values if name in _words(error.what)]
    return suspects[0] if len(suspects) == 1 else None


def _complaint(kind: type[Any], values: Mapping[str, Any]) -> str | None:
    try:
        kind(**values)
    except UserError as error:
        return error.what
    return None


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())
