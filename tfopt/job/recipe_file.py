"""Read and write recipe files: a chain, and the job it is for, as TOML.

Reading executes nothing that a file names: only tfopt's own transform modules are imported, and
the job stays text until :mod:`tfopt.job.references` resolves it. A file whose chain names functions
is refused unless the reader trusts it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically
from tfopt.job.plain_values import did_you_mean, from_plain, show, to_plain
from tfopt.job.references import check_reference, names_function
from tfopt.job.roster import ROSTER, transform_class, transform_name
from tfopt.job.transform import Chain, Transform, chain

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
        outcome = run(job, read_recipe("recipes/cnn_mnist.toml").chain)
    """
    name = os.fspath(path)
    try:
        # As bytes: Python's own newline translation would move lines. Editors add a mark in front.
        content = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"The recipe file {name} cannot be read.",
            expected="TOML in UTF-8: text in quotes, true and false in lower case, each key once",
            received=f"{type(error).__name__}: {error}",
        ) from error
    try:
        return _recipe(content, trust_functions)
    except UserError as error:
        raise error.under(name) from error


def write_recipe(recipe: RecipeFile, path: str | Path) -> Path:
    """Write a recipe file and its folder; fields that have their default are left out."""
    import tomli_w

    if recipe.job is not None:
        check_reference(recipe.job)
    head = {name: getattr(recipe, name) for name in ("title", "description", "job", "arguments")}
    head = {"tfopt": FORMAT, **{name: value for name, value in head.items() if value}}
    blocks = [tomli_w.dumps(head)]
    # tomli_w would put short tables on one line each; people edit [[chain]] more easily.
    steps = [tomli_w.dumps({"chain": step}) for step in chain_to_toml(recipe.chain)]
    blocks += [f"[[chain]]{step.removeprefix('[chain]')}" for step in steps]
    target = Path(path)
    return write_atomically(prepare_folder(target.parent) / target.name, "\n".join(blocks))


def chain_to_toml(chain: Chain) -> list[dict[str, Any]]:
    """Return a chain as plain values, one table a transform; JSON holds them too."""
    return [{"transform": transform_name(part), **to_plain(part)} for part in chain.parts]


def chain_from_toml(tables: Sequence[Mapping[str, Any]]) -> Chain:
    """Return the chain that :func:`chain_to_toml` gave these tables for; it may name functions."""
    return chain(*(_transform(table, f"chain[{n}]") for n, table in enumerate(tables)))


def _recipe(content: Mapping[str, Any], trust_functions: bool) -> RecipeFile:
    document = from_plain(_Document, content)
    if type(document.tfopt) is not int or document.tfopt != FORMAT:
        raise UserError(
            "tfopt does not name a format this tfopt reads.",
            expected=f"tfopt = {FORMAT}",
            received="no such key" if document.tfopt is None else f"tfopt = {show(document.tfopt)}",
            fix=f"write tfopt = {FORMAT} as the first line, or install the tfopt that wrote it",
        )
    if document.job is not None:
        check_reference(document.job)
    transforms = chain_from_toml(document.chain)
    if not trust_functions:
        for number, transform in enumerate(transforms.parts):
            _refuse_functions(transform, f"chain[{number}]")
    return RecipeFile(
        document.job, document.arguments, transforms, document.title, document.description
    )


def _refuse_functions(value: Any, place: str) -> None:
    """Refuse a transform, or the options in one, that names a function."""
    for each in fields(value):
        content, key = getattr(value, each.name), f"{place}.{each.name}"
        if is_dataclass(content):
            _refuse_functions(content, key)
        elif names_function(each) and content is not None:
            raise UserError(
                f"{key} names a function, which the run would import and call.",
                expected="a file without functions, or one that you trust as you trust a program",
                received=repr(content),
                fix="if you know what that function does, add --trust-functions to the command, "
                "or trust_functions=True to read_recipe",
            )


def _transform(table: Mapping[str, Any], place: str) -> Transform:
    name = table.get("transform")
    if not isinstance(name, str) or name not in ROSTER:
        raise UserError(
            f"{place}.transform names no transform.",
            expected=", ".join(ROSTER),
            received=show(name),
            fix=did_you_mean(str(name), list(ROSTER)),
        )
    settings = {key: value for key, value in table.items() if key != "transform"}
    return from_plain(transform_class(name), settings, place)
