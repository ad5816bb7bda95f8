"""Read and write recipe files: a chain, and the job it is for, as TOML.

Reading executes nothing that a file names: only tfopt's own transform modules are imported, and
the job stays text until :mod:`tfopt.job.references` resolves it. A file whose chain names functions
is refused unless the reader trusts it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically
from tfopt.job.job import Chain, Transform, chain
from tfopt.job.plain_values import KeyPath, did_you_mean, dotted, from_plain, show, to_plain
from tfopt.job.references import check_reference, names_function
from tfopt.job.roster import ROSTER, transform_class, transform_name

FORMAT = 1


@dataclass(frozen=True)
class RecipeFile:
    """The content of a recipe file.

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


@dataclass(frozen=True)
class _Document(RecipeFile):
    """The keys of a recipe file."""

    tfopt: Any = None
    chain: tuple[Mapping[str, Any], ...] = ()  # type: ignore[assignment]


def read_recipe(path: str | Path, *, trust_functions: bool = False) -> RecipeFile:
    """Read and validate a recipe file.

    Args:
        path: The TOML file.
        trust_functions: Accepts a chain that names functions. Running it imports and calls them.

    Example:
        job = read_recipe("recipes/cnn_mnist.toml").chain.apply(job)
    """
    name = os.fspath(path)
    content = _parse(_text(Path(path), name), name)
    try:
        return _recipe(content, trust_functions)
    except UserError as error:
        raise error.under(name) from error


def write_recipe(recipe: RecipeFile, path: str | Path) -> Path:
    """Write a recipe file and its folder; fields that have their default are left out."""
    import tomli_w

    if recipe.job is not None:
        check_reference(recipe.job)
    _refuse_unwritable(recipe.arguments, ("arguments",))
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
    """Return a chain as plain values, one table a transform; JSON holds them too."""
    return [{"transform": transform_name(part), **to_plain(part)} for part in chain.parts]


def chain_from_toml(tables: Sequence[Mapping[str, Any]]) -> Chain:
    """Return the chain that :func:`chain_to_toml` gave these tables for; it may name functions."""
    return chain(*(_transform(table, f"chain[{n}]") for n, table in enumerate(tables)))


def _text(path: Path, name: str) -> str:
    try:
        # Python's own newline translation would move lines; Windows editors add a mark in front.
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The recipe file {name} cannot be read.",
            expected="a TOML file, which is always UTF-8",
            received=f"{type(error).__name__}: {error}",
        ) from error


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        raise UserError(
            f"{name}:{line}: this is not valid TOML.",
            expected="text in quotes, true and false in lower case, each key once",
            received=str(error),
        ) from error


def _recipe(content: Mapping[str, Any], trust_functions: bool) -> RecipeFile:
    _refuse_unwritable(content)
    document = from_plain(_Document, content)
    _check_format(document.tfopt)
    if document.job is not None:
        try:
            check_reference(document.job)
        except UserError as error:
            raise error.under("job") from error
    transforms = chain_from_toml(document.chain)
    if not trust_functions:
        for number, transform in enumerate(transforms.parts):
            _refuse_functions(transform, ("chain", number))
    return RecipeFile(
        document.job, document.arguments, transforms, document.title, document.description
    )


def _check_format(version: Any) -> None:
    if type(version) is int and version == FORMAT:
        return
    newer = type(version) is int and version > FORMAT
    raise UserError(
        "tfopt does not name a format this tfopt reads.",
        expected=f"tfopt = {FORMAT}",
        received="no such key" if version is None else f"tfopt = {show(version)}",
        fix="install a newer tfopt" if newer else f"write tfopt = {FORMAT} as the first line",
    )


def _refuse_unwritable(value: Any, path: KeyPath = ()) -> None:
    """Refuse what TOML cannot hold, such as None, and what JSON cannot, such as a date."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_unwritable(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_unwritable(item, (*path, index))
    elif not isinstance(value, bool | int | float | str):
        raise UserError(
            f"{dotted(path)} does not fit.",
            expected="a number, text, true or false, or an array or table of these",
            received=repr(value),
        )


def _refuse_functions(value: Any, path: KeyPath) -> None:
    """Refuse a transform, or the options in one, that names a function."""
    for each in fields(value):
        content, place = getattr(value, each.name), (*path, each.name)
        if is_dataclass(content):
            _refuse_functions(content, place)
        elif names_function(each) and content is not None:
            raise UserError(
                f"{dotted(place)} names a function, which the run would import and call.",
                expected="a file without functions, or one that you trust as you trust a program",
                received=repr(content),
                fix="if you know what that function does, add --trust-functions to the command, "
                "or trust_functions=True to read_recipe",
            )


def _transform(table: Mapping[str, Any], place: str) -> Transform:
    known = ", ".join(ROSTER)
    if "transform" not in table:
        raise UserError(
            f"{place}.transform is missing.", expected=f"the name of a transform: {known}"
        )
    name = table["transform"]
    if not isinstance(name, str) or name not in ROSTER:
        raise UserError(
            f"{place}.transform names no transform.",
            expected=known,
            received=show(name),
            fix=did_you_mean(str(name), list(ROSTER)),
        )
    settings = {key: value for key, value in table.items() if key != "transform"}
    return from_plain(transform_class(name), settings, place)
