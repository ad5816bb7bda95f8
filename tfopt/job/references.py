"""Resolve references, "package.module:name", by which files and command lines name your code.

**Importing a module runs it**: that is Python, and no check here can come before it. Name, and
let a recipe file name, only modules that you would run. Only a function that says it returns a Job
is called for one.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field
from types import FunctionType, ModuleType
from typing import Any

from tfopt.errors import UserError
from tfopt.job.job import Job
from tfopt.job.plain_values import did_you_mean

NAMES_FUNCTION: Mapping[str, Any] = {"tfopt.names_function": True}
"""The metadata of a dataclass field that holds the reference of a function."""

_EXPECTED = '"package.module:name", as in "my_package.train:job"'


def resolve_job(reference: str, arguments: Mapping[str, Any], *, seed: int | None = None) -> Job:
    """Return the Job that a reference names, or that the function it names returns.

    ``arguments`` are the keyword arguments of that function; a ``seed`` stands for the job's own,
    and for the function's argument of that name. A file may name any function there is,
    ``os:system`` too, so only one annotated as returning a Job is called.
    """
    target = _resolve(reference)
    if not isinstance(target, Job):
        target = _made(reference, target, arguments, seed)
    elif arguments:
        raise UserError(
            f"{reference} is a Job, which takes no arguments.",
            expected="a function returning a Job, where there are arguments",
            received=", ".join(arguments),
        )
    return target if seed is None else target.with_(seed=seed)


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


def names_function(each: Field[Any]) -> bool:
    """Return whether a dataclass field is marked as holding the reference of a function."""
    return NAMES_FUNCTION.items() <= each.metadata.items()


def check_reference(reference: str) -> tuple[str, str]:
    """Return the module and the name in a reference; nothing is imported."""
    module, colon, name = reference.partition(":")
    if colon and _is_dotted_name(module) and _is_dotted_name(name):
        return module, name
    raise UserError(
        "The reference is malformed.",
        expected=f"{_EXPECTED}: no path, no .py",
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
    """Return what a reference names: a name in a module or in a class, since others run code."""
    module_name, attribute = check_reference(reference)
    found: Any = import_module(module_name)
    for name in attribute.split("."):
        if not (isinstance(found, ModuleType | type) and hasattr(found, name)):
            owner = getattr(found, "__name__", f"a {type(found).__name__}")
            raise UserError(
                f"{owner} has no {name!r}.",
                expected=f"{_EXPECTED}; a name in a module or in a class",
                received=reference,
                fix=did_you_mean(name, dir(found)),
            )
        found = getattr(found, name)
    return found


def _made(reference: str, target: Any, arguments: Mapping[str, Any], seed: int | None) -> Job:
    """Call the function that makes a Job."""
    parameters = _signature_of(reference, target).parameters
    if seed is not None and "seed" in parameters:
        arguments = {**arguments, "seed": seed}
    try:
        inspect.signature(target).bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"{reference} cannot be called with these arguments: {error}.",
            expected=", ".join(parameters) or "no arguments",
            received=", ".join(arguments) or "no arguments",
            fix="mend [arguments] in the recipe file, or --set on the command line",
        ) from error
    job = target(**arguments)
    if not isinstance(job, Job):
        raise UserError(
            f"{reference} returned no Job.",
            expected="a tfopt.Job; of a compiled model: Job.from_model(model, data)",
            received=type(job).__name__,
        )
    return job


def _signature_of(reference: str, target: Any) -> inspect.Signature:
    """Return the signature of a function that says it returns a Job; refuse anything else."""
    written = inspect.unwrap(target) if inspect.isroutine(target) else None
    written = getattr(written, "__func__", written)
    if not isinstance(written, FunctionType):
        raise UserError(
            f"{reference} is neither a Job nor a function that makes one.",
            expected="a Job, or def job(...) -> tfopt.Job:",
            received=type(target).__name__,
        )
    # The annotation alone is read, and never evaluated: under the __future__ import it is text.
    said = inspect.get_annotations(written).get("return")
    text = said.strip("'\"") if isinstance(said, str) else ""
    if said is not Job and not (_is_dotted_name(text) and text.split(".")[-1] == Job.__name__):
        raise UserError(
            f"{reference} does not say that it returns a Job, so it is not called.",
            expected=f"def {written.__name__}(...) -> tfopt.Job:",
            received="no return annotation" if said is None else f"-> {said}",
            fix="if it makes a Job, write -> tfopt.Job before the colon of that line",
        )
    return inspect.signature(written)


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))
