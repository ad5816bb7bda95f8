"""Recipe files: a chain, and the job it is for, as TOML.

Guarantees: reading executes nothing that a file names; only tfopt's own transform modules are
imported, and the job stays text until ``tfopt.references`` resolves it, which imports its module
and so runs that. A file whose chain names functions, to be called later, is refused unless the
reader trusts it. A mistake is told with its line and key. A written file reads back to an equal
recipe and appears whole or not at all.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, time
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically
from tfopt.job import Chain, Transform, chain
from tfopt.references import check_reference, names_function
from tfopt.roster import ROSTER, transform_class, transform_name
from tfopt.toml_lines import KeyPath, Source, line_numbers
from tfopt.toml_values import coerce, from_plain, to_plain, unknown_key

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
