"""Recipe files: a chain, and the job it is for, as TOML.

Guarantees: reading executes nothing that a file names; only tfopt's own transform modules are
imported, and the job stays text until ``tfopt.job.references`` resolves it, which imports its
module and so runs that. A file whose chain names functions, to be called later, is refused
unless the reader trusts it. A mistake is told with its line and key. A written file reads back
to an equal recipe and appears whole or not at all.
"""

from __future__ import annotations

import os
import re
import tomllib
import types
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import date, time
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically
from tfopt.job.job import Chain, Transform, chain
from tfopt.job.references import check_reference, names_function
from tfopt.job.roster import ROSTER, transform_class, transform_name

# On which line of a TOML text each key stands; ``tomllib`` keeps no positions.
#
# Guarantees: for a text that ``tomllib`` accepts, every key, table and array element is found
# under the path that leads to it in the parsed document (``("chain", 2, "sparsity")``), and
# nothing else is. Text is only scanned, never interpreted: values are skipped, not read.

KeyPath = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]+")
# A multi-line string may end in up to five quotes, of which only the last three close it.
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?!")'
    r"|'''.*?'''(?!')"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'",
    re.DOTALL,
)


@dataclass(frozen=True)
class Source:
    """Where values were written, so that an error can point there."""

    file: str | None = None
    lines: Mapping[KeyPath, int] = field(default_factory=lambda: {(): 1})

    def where(self, path: KeyPath) -> str:
        """``file:line: key``; a key that is not in the file is placed on its table's line."""
        if self.file is None:
            return dotted(path)
        known = path
        while known not in self.lines:
            known = known[:-1]
        return f"{self.file}:{self.lines[known]}: {dotted(path)}"


def dotted(path: KeyPath) -> str:
    """The path as people write it: ``chain[2].sparsity``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE_KEY.fullmatch(part) else f'"{part}"'
            text += f".{name}" if text else name
    return text


def line_numbers(text: str) -> dict[KeyPath, int]:
    """The line of every key, table and array element of a valid TOML text, counted from 1."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


class _Scanner:
    """Walks a text that is known to be valid, so nothing here reports syntax errors."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {(): 1}
        self._text = text
        self._at = 0
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._repeated: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self) -> KeyPath:
        line = self._line()
        width = 2 if self._text.startswith("[[", self._at) else 1
        self._at += width
        names = self._key()
        self._at += width
        path: KeyPath = ()
        for name in names[:-1]:
            path = (*path, name)
            self.lines.setdefault(path, line)
            if path in self._repeated:
                # A header speaks of the latest of the repeated tables above it.
                path = (*path, self._repeated[path])
        path = (*path, names[-1])
        if width == 2:
            self.lines.setdefault(path, line)
            self._repeated[path] = self._repeated.get(path, -1) + 1
            path = (*path, self._repeated[path])
        # Not setdefault: an earlier [a.b] has only implied this table.
        self.lines[path] = line
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self._at += len("=")
        self._skip(_SPACE)
        self._value(path)

    def _key(self) -> list[str]:
        """The parts of a dotted key, and the space behind it."""
        names = []
        while True:
            self._skip(_SPACE)
            if self._text[self._at] in "\"'":
                # Only tomllib knows what the escapes in a quoted key stand for.
                names.append(tomllib.loads(f"key = {self._take(_STRING)}")["key"])
            else:
                names.append(self._take(_BARE_KEY))
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return names
            self._at += len(".")

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self._take(_STRING if first in "\"'" else _SCALAR)

    def _array(self, path: KeyPath) -> None:
        self._at += len("[")
        index = 0
        while not self._closed("]"):
            self.lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += len("{")
        while not self._closed("}"):
            self._pair(path)

    def _closed(self, bracket: str) -> bool:
        """Steps over blanks and a comma, and over the closing bracket if that comes next."""
        self._skip(_BLANK)
        if self._text[self._at] == ",":
            self._at += len(",")
            self._skip(_BLANK)
        if self._text[self._at] != bracket:
            return False
        self._at += len(bracket)
        return True

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        assert match is not None, f"not valid TOML at {self._at}"
        self._at = match.end()
        return match.group()

    def _skip(self, pattern: re.Pattern[str]) -> None:
        self._take(pattern)

    def _line(self) -> int:
        return bisect_left(self._newlines, self._at) + 1


# Between frozen dataclasses and the plain values that TOML and JSON can hold.
#
# Guarantees: what ``to_plain`` writes, ``from_plain`` reads back to an equal value, or
# ``to_plain`` refuses it; a value that does not fit the type hint of its field is refused with
# its place in the file, and so is one that the dataclass itself refuses when it is made.

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


FORMAT = 1


@dataclass(frozen=True)
class RecipeFile:
    """What a recipe file says.

    Attributes:
        job: "package.module:name" of a Job or of a function returning one; None leaves it to
            the command line.
        arguments: Keyword arguments of the job function.
        chain: The transforms, in order.
        title: A short name for the report.
        description: What the recipe is for, in a sentence or two.
    """

    job: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    chain: Chain = field(default_factory=Chain)
    title: str | None = None
    description: str | None = None


def read_recipe(path: str | Path, *, trust_functions: bool = False) -> RecipeFile:
    """Reads and validates a recipe file.

    Args:
        path: The TOML file.
        trust_functions: Accepts a chain that names functions. Running it imports and calls them.
    """
    name = os.fspath(path)
    document, source = _parse(_text(Path(path), name), name)
    known = ("tfopt", *(each.name for each in fields(RecipeFile)))
    for key in document:
        if key not in known:
            raise unknown_key(key, dict.fromkeys(known), source, (), owner="a recipe file")
    _check_format(document, source)
    transforms = _chain(document.get("chain", []), source, ("chain",))
    if not trust_functions:
        for number, transform in enumerate(transforms.parts):
            _refuse_functions(transform, source, ("chain", number))
    return RecipeFile(
        job=_job(document, source),
        arguments=_arguments(document, source),
        chain=transforms,
        title=_optional_text(document, "title", source),
        description=_optional_text(document, "description", source),
    )


def write_recipe(recipe: RecipeFile, path: str | Path) -> Path:
    """Writes a recipe file and its folder; fields that have their default are left out."""
    import tomli_w

    if recipe.job is not None:
        check_reference(recipe.job)
    _refuse_unwritable(recipe.arguments, Source(), ("arguments",))
    head: dict[str, Any] = {"tfopt": FORMAT}
    for name in ("title", "description", "job"):
        if getattr(recipe, name) is not None:
            head[name] = getattr(recipe, name)
    if recipe.arguments:
        head["arguments"] = dict(recipe.arguments)
    # tomli_w would put short tables on one line each; people edit [[chain]] more easily.
    steps = [tomli_w.dumps({"chain": step}) for step in chain_to_toml(recipe.chain)]
    blocks = [f"[[chain]]{step.removeprefix('[chain]')}" for step in steps]
    target = Path(path)
    content = "\n".join([tomli_w.dumps(head), *blocks])
    return write_atomically(prepare_folder(target.parent) / target.name, content)


def chain_to_toml(chain: Chain) -> list[dict[str, Any]]:
    """A chain as plain values, one table a transform; JSON holds them too."""
    return [{"transform": transform_name(part), **to_plain(part)} for part in chain.parts]


def chain_from_toml(tables: Sequence[Mapping[str, Any]]) -> Chain:
    """The chain that :func:`chain_to_toml` gave these tables for; its functions are trusted."""
    return _chain(list(tables), Source(), ("chain",))


def _text(path: Path, name: str) -> str:
    try:
        # Python's own newline translation would move lines; Windows editors add a mark in front.
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(
            f"The recipe file {name} cannot be read.",
            expected="a TOML file",
            received=f"{type(error).__name__}: {error.strerror or error}",
            fix=_near(path),
        ) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{name}:{line}: this is not UTF-8 text.",
            expected="a TOML file, which is always UTF-8",
            received=f"byte 0x{error.object[error.start]:02x}",
        ) from error


def _near(path: Path) -> str | None:
    """A recipe file beside the one that was asked for, where the name is nearly the same."""
    if path.exists() or not path.parent.is_dir():
        return None
    present = [each.name for each in path.parent.glob("*.toml")]
    close = get_close_matches(path.name, present, n=1)
    return f"did you mean {path.parent / close[0]}?" if close else None


def _parse(text: str, name: str) -> tuple[dict[str, Any], Source]:
    try:
        document = tomllib.loads(text)
        return document, Source(name, line_numbers(text))
    except RecursionError as error:
        raise UserError(f"{name} is nested too deeply to be read.") from error
    except ValueError as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        raise UserError(
            f"{name}:{line}: this is not valid TOML.",
            received=str(error),
            fix="text needs quotes, and true and false are lower case"
            if found and str(error).startswith("Invalid value")
            else None,
        ) from error


def _check_format(document: Mapping[str, Any], source: Source) -> None:
    version = document.get("tfopt")
    if type(version) is int and version == FORMAT:
        return
    newer = type(version) is int and version > FORMAT
    raise UserError(
        f"{source.where(('tfopt',))} does not name a format this tfopt reads.",
        expected=f"tfopt = {FORMAT}",
        received="no such key" if version is None else f"tfopt = {version!r}",
        fix="install a newer tfopt" if newer else f"write tfopt = {FORMAT} as the first line",
    )


def _job(document: Mapping[str, Any], source: Source) -> str | None:
    job = _optional_text(document, "job", source)
    if job is not None:
        try:
            check_reference(job)
        except UserError as error:
            raise UserError(
                f"{source.where(('job',))}: {error.what}",
                expected=error.expected,
                received=error.received,
                fix=error.fix,
            ) from error
    return job


def _optional_text(document: Mapping[str, Any], key: str, source: Source) -> str | None:
    if key not in document:
        return None
    value: str = coerce(document[key], str, source, (key,))
    return value


def _arguments(document: Mapping[str, Any], source: Source) -> dict[str, Any]:
    arguments = document.get("arguments", {})
    if not isinstance(arguments, dict):
        raise UserError(
            f"{source.where(('arguments',))} is not a table.",
            expected="[arguments] with one NAME = VALUE a line",
            received=repr(arguments),
        )
    _refuse_unwritable(arguments, source, ("arguments",))
    return arguments


def _refuse_unwritable(value: Any, source: Source, path: KeyPath) -> None:
    """Arguments travel as TOML, which has no None, and as JSON, which has no dates."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_unwritable(item, source, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_unwritable(item, source, (*path, index))
    elif not isinstance(value, bool | int | float | str):
        raise UserError(
            f"{source.where(path)} does not fit.",
            expected="a number, text, true or false, or an array or table of these",
            received=repr(value),
            fix=_plainer(value),
        )


def _plainer(value: Any) -> str | None:
    if value is None:
        return "leave it out, so that the function's own default holds"
    if isinstance(value, date | time):
        return "write it as text in quotes"
    return None


def _chain(tables: Any, source: Source, path: KeyPath) -> Chain:
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise UserError(
            f"{source.where(path)} is not a list of tables.",
            expected="one [[chain]] table, in two pairs of brackets, for each transform",
            received=repr(tables),
        )
    return chain(*(_transform(table, source, (*path, i)) for i, table in enumerate(tables)))


def _refuse_functions(value: Any, source: Source, path: KeyPath) -> None:
    """Refuses a transform, or the options in one, that names a function."""
    for each in fields(value):
        content, place = getattr(value, each.name), (*path, each.name)
        if is_dataclass(content):
            _refuse_functions(content, source, place)
        elif names_function(each) and content is not None:
            raise UserError(
                f"{source.where(place)} names a function, which the run would import and call.",
                expected="a file without functions, or one that you trust as you trust a program",
                received=repr(content),
                fix="if you know what that function does, add --trust-functions to the command, "
                "or trust_functions=True to read_recipe",
            )


def _transform(table: Mapping[str, Any], source: Source, path: KeyPath) -> Transform:
    place = (*path, "transform")
    if "transform" not in table:
        raise UserError(
            f"{source.where(place)} is missing.",
            expected=f"the name of a transform: {', '.join(ROSTER)}",
        )
    name = table["transform"]
    if not isinstance(name, str) or name not in ROSTER:
        close = get_close_matches(str(name).lower(), ROSTER, n=1)
        raise UserError(
            f"{source.where(place)} names no transform.",
            expected=", ".join(ROSTER),
            received=repr(name),
            fix=f"did you mean {close[0]}?" if close else None,
        )
    settings = {key: value for key, value in table.items() if key != "transform"}
    return from_plain(transform_class(name), settings, source, path)
