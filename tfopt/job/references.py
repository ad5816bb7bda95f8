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
import traceback
from collections.abc import Callable, Mapping
from dataclasses import Field
from difflib import get_close_matches
from types import FunctionType, ModuleType
from typing import Any

from tfopt.errors import UserError
from tfopt.job.job import Job

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
    if seed is None:
        return _made(reference, target, arguments)
    written = _as_written(target)
    if written is not None and "seed" in inspect.signature(written).parameters:
        arguments = {**arguments, "seed": seed}
    return _made(reference, target, arguments).with_(seed=seed)


def _made(reference: str, target: Any, arguments: Mapping[str, Any]) -> Job:
    if isinstance(target, Job):
        if arguments:
            raise UserError(
                f"{reference} is a Job, which takes no arguments.",
                expected="a function returning a Job, where there are arguments",
                received=", ".join(arguments),
                fix="drop the arguments, or turn the Job into a function that takes them",
            )
        return target
    _check_makes_a_job(reference, target)
    _check_arguments(reference, target, arguments)
    job = _call(reference, target, arguments)
    if not isinstance(job, Job):
        raise UserError(
            f"{reference} returned no Job.",
            expected="a tfopt.Job",
            received=type(job).__name__,
            fix=_job_fix(job),
        )
    return job


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
        expected=_EXPECTED,
        received=repr(reference),
        fix=_mended(reference),
    )


def _is_dotted_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _mended(reference: str) -> str | None:
    """Return what was probably meant: a file's path for a module, a dot for the colon."""
    module, colon, name = reference.partition(":")
    module = module.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not colon:
        module, _, name = module.rpartition(".")
    if _is_dotted_name(module) and _is_dotted_name(name):
        return f"did you mean {module}:{name}?"
    return None


def _resolve(reference: str) -> Any:
    """Return what a reference names."""
    module_name, attribute = check_reference(reference)
    found: Any = import_module(module_name)
    for name in attribute.split("."):
        if not isinstance(found, ModuleType | type):
            raise UserError(
                f"{reference} looks into an object, which can run code.",
                expected="a name in a module or in a class",
                received=f"{name!r} of a {type(found).__name__}",
                fix=f"give it a name of its own in {module_name}",
            )
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise _no_attribute(reference, found, name) from error
    return found


def import_module(name: str) -> ModuleType:
    """Import the module of this name; whatever is wrong with it is one error."""
    _make_current_folder_importable()
    try:
        return importlib.import_module(name)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        # Only the module itself, or a package above it, counts as "not found".
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise UserError(
                f"There is no module {missing!r}.",
                expected="a module that is installed, or in the current folder",
                received=name,
                fix="run from the folder that holds it, or install its package",
            ) from error
        raise UserError(
            f"{name} exists, but importing it failed.",
            received=_in_one_line(error),
            fix="keep what runs out of import, under if __name__ == '__main__'"
            if isinstance(error, SystemExit)
            else "mend that module, or install what it needs; --debug shows the traceback",
        ) from error


def _make_current_folder_importable() -> None:
    """Do what ``python -m`` does and an installed command does not."""
    folder = os.getcwd()
    if not sys.flags.safe_path and folder not in sys.path and "" not in sys.path:
        # It stays there: the job's functions may import more of their package later.
        sys.path.insert(0, folder)
    # A module that was written a moment ago may be newer than the import system's listing.
    importlib.invalidate_caches()


def _no_attribute(reference: str, owner: Any, name: str) -> UserError:
    before, _, after = reference.rpartition(name)
    public = [each for each in dir(owner) if not each.startswith("_")]
    close = [f"{before}{each}{after}" for each in get_close_matches(name, public, n=1)]
    return UserError(
        f"{getattr(owner, '__name__', type(owner).__name__)} has no {name!r}.",
        expected=_EXPECTED,
        received=reference,
        fix=f"did you mean {close[0]}?" if close else None,
    )


def _check_makes_a_job(reference: str, target: Any) -> None:
    written = _as_written(target)
    if written is None:
        raise UserError(
            f"{reference} is neither a Job nor a function that makes one.",
            expected="a Job, or def job(...) -> tfopt.Job:",
            received=type(target).__name__,
            fix=_job_fix(target) or "write such a function and name it",
        )
    if not _says_it_returns_a_job(written):
        said = inspect.get_annotations(written)
        code = written.__code__
        raise UserError(
            f"{reference} does not say that it returns a Job, so it is not called.",
            expected=f"def {written.__name__}(...) -> tfopt.Job:",
            received=f"-> {inspect.formatannotation(said['return'])}"
            if "return" in said
            else "no return annotation",
            fix="if it makes a Job, write -> tfopt.Job before the colon of that line "
            f"({code.co_filename}:{code.co_firstlineno}), and import tfopt at the top of the file",
        )


def _as_written(target: Any) -> FunctionType | None:
    """Return the ``def`` of a function, bound or decorated; None for anything else."""
    if not inspect.isfunction(target) and not inspect.ismethod(target):
        return None
    written = inspect.unwrap(target)
    written = getattr(written, "__func__", written)
    return written if isinstance(written, FunctionType) else None


def _says_it_returns_a_job(function: FunctionType) -> bool:
    """Read the annotation alone, which is looked up and never evaluated."""
    annotation = inspect.get_annotations(function).get("return")
    if not isinstance(annotation, str):
        return annotation is Job
    # Under the __future__ import, quotes are part of the text.
    name = annotation.strip("'\"")
    if not _is_dotted_name(name):
        return False
    first, *rest = name.split(".")
    if first not in function.__globals__:
        # Imported for type checkers only, so that the name is all there is.
        return name.rpartition(".")[2] == Job.__name__
    found = function.__globals__[first]
    for each in rest:
        found = getattr(found, each, None)
    return found is Job


def _check_arguments(
    reference: str, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"{reference} cannot be called with these arguments: {error}.",
            expected=", ".join(signature.parameters) or "no arguments",
            received=", ".join(arguments) or "no arguments",
            fix="mend [arguments] in the recipe file, or --set on the command line",
        ) from error


def _call(reference: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{reference} failed while it made the job.",
            received=_in_one_line(error),
            fix="mend that function; --debug shows the traceback",
        ) from error


def _in_one_line(error: BaseException) -> str:
    """Return the error in one line, with the user's own line that it came through."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError) and error.filename:
        return text
    own = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((own, "<")) and frame.filename != importlib.__file__
    ]
    return f"{text} ({frames[0].filename}:{frames[0].lineno})" if frames else text


def _job_fix(value: Any) -> str | None:
    # Its class is asked, since asking an object can run code.
    return "wrap the model: Job.from_model(model, data)" if hasattr(type(value), "fit") else None
