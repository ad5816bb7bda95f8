"""Resolve what ``tfopt bench`` is pointed at: a recipe file, a recipe module, or a job.

Nothing is imported but a recipe module, whose chain cannot be known otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.job.job import Chain, Job, Transform
from tfopt.job.recipe_file import chain_to_toml, read_recipe
from tfopt.job.references import check_reference, import_module

JOB = "job"
CHAIN = "CHAIN"


@dataclass(frozen=True)
class Target:
    """A job by reference with its arguments, and the chain that belongs to it."""

    name: str
    job: str
    chain: Chain = field(default_factory=Chain)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the target as plain JSON values."""
        return {
            "job": self.job,
            "arguments": dict(self.arguments),
            "chain": chain_to_toml(self.chain),
        }


def plain_arguments(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a job function, which other processes get as JSON."""
    given = dict(arguments or {})
    for name, value in given.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"The argument {name!r} cannot be sent to another process.",
                expected="a number, text, true or false, None, or lists and dicts of these",
                received=f"a {type(value).__name__}",
                fix="give such a value, and make what you need of it inside the job function",
            ) from error
    return given


def parts_of(chain: Transform | None) -> tuple[Transform, ...]:
    """Return the transforms of what a caller gave as a chain."""
    if chain is not None and not isinstance(chain, Transform):
        raise UserError(
            "This is no chain.",
            expected="tfopt.chain(...), one transform, or None",
            received=repr(chain),
        )
    return () if chain is None else chain.parts


def resolve_target(
    text: str, arguments: Mapping[str, Any], *, trust_functions: bool = False
) -> Target:
    """Return the target of a word on the command line; ``arguments`` go before a file's own."""
    if text.endswith(".toml") or Path(text).is_file():
        return _of_file(text, arguments, trust_functions)
    if ":" in text:
        check_reference(text)
        return Target(text, text, arguments=arguments)
    return _of_module(text, arguments)


def _of_file(text: str, arguments: Mapping[str, Any], trust_functions: bool) -> Target:
    if text.endswith(".py"):
        raise UserError(
            f"{text} is a file, not a target.",
            expected="a recipe file (.toml), a recipe module, or package.module:job",
            received=text,
            fix=f"from its folder, {text.removesuffix('.py').replace('/', '.')}:job",
        )
    recipe = read_recipe(text, trust_functions=trust_functions)
    if recipe.job is None:
        raise UserError(
            f"{text} names no job.",
            expected='job = "package.module:name" in the file',
            fix=f"give your job, and this file as its chain: package.module:job --chain {text}",
        )
    name = recipe.title or Path(text).stem
    return Target(name, recipe.job, recipe.chain, {**recipe.arguments, **arguments})


def _of_module(text: str, arguments: Mapping[str, Any]) -> Target:
    # A dotted name alone, as under python -m.
    check_reference(f"{text}:{JOB}")
    module = import_module(text)
    chain = getattr(module, CHAIN, None)
    if not isinstance(getattr(module, JOB, None), Job) and not callable(getattr(module, JOB, None)):
        raise UserError(
            f"{text} is not a recipe module.",
            expected=f"a module with {JOB} and {CHAIN}",
            received=f"no {JOB} in {text}",
            fix="name the job itself: package.module:name",
        )
    if not isinstance(chain, Chain):
        raise UserError(
            f"{text} is not a recipe module.",
            expected=f"{CHAIN} = tfopt.chain(...) beside {JOB}",
            received=f"{CHAIN} of type {type(chain).__name__}" if chain else f"no {CHAIN}",
            fix=f"measure its job alone with {text}:{JOB}, or under a recipe file with --chain",
        )
    return Target(text.rpartition(".")[2], f"{text}:{JOB}", chain, arguments)
