"""Resolve references, "package.module:name", by which files and command lines name your code.

**Importing a module runs it**: that is Python, and no check here can come before it. Name, and
let a recipe file name, only modules that you would run. Only a function that says it returns a Job
is called for one.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from tfopt.errors import UserError
from tfopt.job.job import Job
from tfopt.job.plain_values import did_you_mean

_EXPECTED = '"package.module:name", as in "my_package.train:job"'
_NAMES_JOB = re.compile(r"""["']?(\w+\.)*Job["']?""")


def resolve_job(reference: str, arguments: Mapping[str, Any], *, seed: int | None = None) -> Job:
    """Return the Job that a reference names, or that the function it names returns.

    ``arguments`` are the keyword arguments of that function; a ``seed`` stands for the job's own,
    and for the function's argument of that name. A file may name any function there is,
    ``os:system`` too, so only one annotated as returning a Job is called.
    """
    target = _resolve(reference)
    if not isinstance(target, Job):
        _require_says_job(reference, target)
    function = (lambda: target) if isinstance(target, Job) else target
    signature = inspect.signature(function)
    if seed is not None and "seed" in signature.parameters:
        arguments = {**arguments, "seed": seed}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"{reference} cannot be called with these arguments: {error}.",
            expected=", ".join(signature.parameters) or "no arguments",
            received=", ".join(arguments) or "no arguments",
            fix="mend [arguments] in the recipe file, or --set on the command line",
        ) from error
    job = function(**arguments)
    if not isinstance(job, Job):
        raise UserError(
            f"{reference} returned no Job.",
            expected="a tfopt.Job; of a compiled model: Job.from_model(model, data)",
            received=type(job).__name__,
        )
    return job if seed is None else job.with_(seed=seed)


def resolve_function(reference: str) -> Callable[..., Any]:
    """Return the function that a reference names."""
    target = _resolve(reference)
    if not callable(target):
        raise UserError(
            f"{reference} is not a function.",
            expected="something that can be called",
            received=type(target).__name__,
        )
    function: Callable[..., Any] = target
    return function


def check_reference(reference: str) -> tuple[str, str]:
    """Return the module and the name in a reference; nothing is imported."""
    module, _, name = reference.partition(":")
    if all(part.isidentifier() for part in (*module.split("."), name)):
        return module, name
    raise UserError(
        "The reference is malformed.",
        expected=f"{_EXPECTED}: no path, no .py, and a name of the module itself",
        received=repr(reference),
    )


def import_module(name: str) -> ModuleType:
    """Import the module of this name, also from the current folder, as ``python -m`` does."""
    folder = os.getcwd()
    # It stays there: the job's functions may import more of their package.
    if not sys.flags.safe_path and folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    # A module that was written a moment ago may be newer than the import system's listing.
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the module itself, or a package above it, counts as "not found".
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"There is no module {error.name!r}.",
            expected="a module that is installed, or in the current folder",
            received=name,
            fix="run from the folder that holds it, or install its package",
        ) from error


def _resolve(reference: str) -> Any:
    module_name, name = check_reference(reference)
    module = import_module(module_name)
    if not hasattr(module, name):
        raise UserError(
            f"{module_name} has no {name!r}.",
            expected=_EXPECTED,
            received=reference,
            fix=did_you_mean(name, dir(module)),
        )
    return getattr(module, name)


def _require_says_job(reference: str, target: Any) -> None:
    """Refuse what is not annotated as returning a Job."""
    # The annotation is read, and never evaluated: under the __future__ import it is text.
    said = getattr(inspect.unwrap(target), "__annotations__", {}).get("return")
    if said is not Job and not (isinstance(said, str) and _NAMES_JOB.fullmatch(said)):
        raise UserError(
            f"{reference} does not say that it returns a Job, so it is not called.",
            expected="a Job, or a function: def job(...) -> tfopt.Job:",
            received=type(target).__name__ if said is None else f"-> {said}",
            fix="if it makes a Job, write -> tfopt.Job before the colon of that line",
        )
