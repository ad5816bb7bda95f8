"""Read and write recipe files: a chain, and the job it is for, as TOML.

Reading executes nothing that a file names: only tfopt's own transform modules are imported, and the
job stays a string until :mod:`tfopt.job.references` resolves it. A file whose chain names functions
is an error unless it is trusted.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tfopt.errors import UserError
from tfopt.files import nearest_path, prepare_folder, write_atomically
from tfopt.job.plain_values import from_plain, to_plain
from tfopt.job.references import check_reference
from tfopt.job.roster import transform_class, transform_name
from tfopt.job.transform import Chain, chain


@dataclass(frozen=True)
class RecipeFile:
    """The content of a recipe file.

    Attributes:
        job: "package.module:name" of a Job or of a function returning one; None: the command
            line's.
        arguments: Keyword arguments of the job function.
        chain: The transforms, in order.
        title: A short name for the report.
        description: The purpose of the recipe, in a sentence or two.
    """

    job: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    chain: Chain = field(default_factory=Chain)
    title: str | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        if self.job is not None:
            check_reference(self.job)


@dataclass(frozen=True)
class _Document(RecipeFile):
    """The keys of a recipe file, among them the number of its format."""

    chain: tuple[Mapping[str, Any], ...] = ()  # type: ignore[assignment]
    tfopt: Literal[1] = field(kw_only=True)


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
        # As bytes: newline translation would change line numbers. Some editors write a BOM.
        content = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise UserError(
            f"The recipe file {name} does not exist.", fix=nearest_path(Path(path))
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"The recipe file {name} cannot be read.",
            expected="TOML in UTF-8: text in quotes, true and false in lower case, each key once",
            received=f"{type(error).__name__}: {error}",
        ) from error
    try:
        document = from_plain(_Document, content)
        steps = chain_from_toml(document.chain)
        if not trust_functions:
            _refuse_functions(steps)
    except UserError as error:
        raise error.under(name) from error
    return RecipeFile(document.job, document.arguments, steps, document.title, document.description)


def write_recipe(recipe: RecipeFile, path: str | Path) -> Path:
    """Write a recipe file and its folder; fields with their default are left out."""
    import tomli_w

    head = {name: getattr(recipe, name) for name in ("title", "description", "job", "arguments")}
    head = {"tfopt": 1, **{name: value for name, value in head.items() if value}}
    blocks = [tomli_w.dumps(head)]
    # tomli_w would write short tables inline; [[chain]] is easier to edit.
    steps = [tomli_w.dumps({"chain": step}) for step in chain_to_toml(recipe.chain)]
    blocks += [f"[[chain]]{step.removeprefix('[chain]')}" for step in steps]
    target = Path(path)
    return write_atomically(prepare_folder(target.parent) / target.name, "\n".join(blocks))


def chain_to_toml(chain: Chain) -> list[dict[str, Any]]:
    """Return a chain as plain values, a table per transform, for TOML or JSON."""
    return [{"transform": transform_name(part), **to_plain(part)} for part in chain.parts]


def chain_from_toml(tables: Sequence[Mapping[str, Any]]) -> Chain:
    """Return the chain of tables that :func:`chain_to_toml` wrote; it may name functions."""
    transforms = []
    for number, table in enumerate(tables):
        settings = dict(table)
        try:
            kind = transform_class(settings.pop("transform", None))
            transforms.append(from_plain(kind, settings))
        except UserError as error:
            raise error.under(f"chain[{number}]") from error
    return chain(*transforms)


def _refuse_functions(chain: Chain) -> None:
    for number, transform in enumerate(chain.parts):
        for name in transform.functions:
            if (function := getattr(transform, name)) is not None:
                raise UserError(
                    f"chain[{number}].{name} names a function, which the run would import and "
                    "call.",
                    expected="a file without functions, or one that you trust as a program",
                    received=repr(function),
                    fix="if you trust that function, add --trust-functions to the command, or "
                    "trust_functions=True to read_recipe",
                )
