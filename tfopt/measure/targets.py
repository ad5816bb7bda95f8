"""Resolve what ``tfopt bench`` is pointed at: a recipe file, a recipe module, or a job.

Only a recipe module is imported, for its chain; a job is looked up in the source.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.job.job import Job
from tfopt.job.recipe_file import read_recipe
from tfopt.job.references import check_reference, import_module, require_existing
from tfopt.job.transform import Chain, Transform

_CHILD = "tfopt.measure.starter"


@dataclass(frozen=True)
class Target:
    """A job by reference with its arguments, and the chain that belongs to it.

    ``changed`` are the transforms that it adds to the target before it, or leaves out of the
    reference; ``way`` is a :class:`tfopt.measure.turn_taking.Way` to train it by.
    """

    name: str
    job: str
    chain: Chain = field(default_factory=Chain)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[Transform, ...] = ()
    way: Any = None


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


def reference_of(job: str | Callable[..., Job], caller: str) -> str:
    """Return "package.module:name" of a function that makes a job; ``caller`` asks for it."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == _CHILD:
        raise UserError(
            f"{caller}() is called by the module of the job itself, in a process that measures it.",
            expected="a module that can be imported without starting a search",
            received="a call while it is imported",
            fix="put the call under if __name__ == '__main__':",
        )
    if isinstance(job, str):
        require_existing(job)
        return job
    name = getattr(job, "__qualname__", None)
    if isinstance(job, Job) or not callable(job) or name is None or not name.isidentifier():
        raise UserError(
            "A measurement runs in new processes, which make the job themselves.",
            expected='"package.module:name", or a function of a module: def job() -> tfopt.Job',
            received=f"a {type(job).__name__}" if name is None else name,
            fix="write such a function at the top of a module, and give it or its name",
        )
    module = job.__module__ if job.__module__ != "__main__" else _main_module()
    return f"{module}:{name}"


def _main_module() -> str:
    """Return the name by which a script that is running can be imported."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    path = getattr(main, "__file__", None)
    script = Path(path or "").resolve()
    if script.parent != Path.cwd() or script.suffix != ".py" or not script.stem.isidentifier():
        raise UserError(
            "The job's function is in a script that no other process can import.",
            expected="a function of a module, or of a script in the current folder",
            received=path or "an interactive session",
            fix="move the function into a module, and give it or its name: 'module:job'",
        )
    return script.stem


def resolve_target(
    text: str, arguments: Mapping[str, Any], *, trust_functions: bool = False
) -> Target:
    """Return the target that a word on the command line names; ``arguments`` override a file's."""
    if text.endswith(".toml") or Path(text).is_file():
        return _of_file(text, arguments, trust_functions)
    if ":" in text:
        require_existing(text)
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
            fix="write it into the file, or give your job, package.module:job (commands that take "
            f"a chain: with --chain {text})",
        )
    require_existing(recipe.job)
    name = recipe.title or Path(text).stem
    return Target(name, recipe.job, recipe.chain, {**recipe.arguments, **arguments})


def _of_module(text: str, arguments: Mapping[str, Any]) -> Target:
    # A dotted name alone, as under python -m.
    check_reference(f"{text}:job")
    module = import_module(text)
    job, chain = getattr(module, "job", None), getattr(module, "CHAIN", None)
    if not (isinstance(job, Job) or callable(job)) or not isinstance(chain, Chain):
        raise UserError(
            f"{text} is not a recipe module.",
            expected="a module with job and CHAIN = tfopt.chain(...)",
            received=f"job = {job!r}, CHAIN = {chain!r}",
            fix=f"name the job itself: {text}:job",
        )
    return Target(text.rpartition(".")[2], f"{text}:job", chain, arguments)
