"""Resolve references, "package.module:name", by which recipe files and commands name user code.

**Importing a module runs it**: name, and let a recipe file name, only modules that you would run. A
function is called for a Job only if it is annotated as returning one.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from tfopt.errors import UserError
from tfopt.job.job import Job
from tfopt.job.plain_values import did_you_mean

_EXPECTED = '"package.module:name", as in "my_package.train:job"'
_MAKES_NAMES = ("import *", "__getattr__", "__path__", "globals(", "global ", "setattr(", "exec(")
_NAMES_JOB = re.compile(r"""["']?(\w+\.)*Job["']?""")


def resolve_job(reference: str, arguments: Mapping[str, Any], *, seed: int | None = None) -> Job:
    """Return the Job at a reference, or the result of the function there.

    ``arguments`` are the function's keyword arguments; ``seed`` replaces the job's own, and is
    passed to a function that takes one. Only a function annotated as returning a Job is called: a
    file may name any function, ``os:system`` too.
    """
    target = _resolve(reference)
    if not isinstance(target, Job):
        _require_annotation(reference, target)
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
            fix="correct [arguments] in the recipe file, or --set on the command line",
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
            expected="a callable",
            received=type(target).__name__,
        )
    function: Callable[..., Any] = target
    return function


def check_reference(reference: str) -> tuple[str, str]:
    """Return the module and the name in a reference, without importing it."""
    module, _, name = reference.partition(":")
    if all(part.isidentifier() for part in (*module.split("."), name)):
        return module, name
    raise UserError(
        "The reference is malformed.",
        expected=f"{_EXPECTED}: no path, no .py, and a name of the module itself",
        received=repr(reference),
    )


def require_existing(reference: str) -> None:
    """Raise if the module or the name of a reference does not exist, without importing it.

    A name is looked up in the source, unless the module creates names at run time.
    """
    module, name = check_reference(reference)
    if hasattr(sys.modules.get(module), name):
        return
    source = _source(module)
    if any(word in source for word in _MAKES_NAMES):
        return
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # the import reports it
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list:
            continue
        if node.name == name and node.returns is None:
            raise _not_annotated(reference, "function")
    # Of functions and classes, imports, and variables.
    fields = [vars(node).get(key) for node in ast.walk(tree) for key in ("name", "asname", "id")]
    _require_name(reference, [known for known in fields if isinstance(known, str)])


def _source(module: str) -> str:
    """Return the source of a module, also from the current folder; raise if it is missing."""
    path: list[str] = [os.getcwd(), *sys.path]
    parts, source = module.split("."), ""
    importlib.invalidate_caches()
    for place, part in enumerate(parts):
        name = ".".join(parts[: place + 1])
        spec = PathFinder.find_spec(name, path) or (None if place else find_spec(part))
        if spec is None and "__path__" in source:
            return "__path__"  # its package sets __path__ at run time
        if spec is None:
            known = [info.name for info in iter_modules(path if place else path[:1])]
            raise _no_module(name, module, did_you_mean(part, known))
        path = [*(spec.submodule_search_locations or ())]
        file = Path(spec.origin or "")
        source = file.read_text("utf-8", "replace") if file.suffix == ".py" else "__path__"
    return source


def _no_module(missing: str, module: str, fix: str | None = None) -> UserError:
    return UserError(
        f"There is no module {missing!r}.",
        expected="a module that is installed, or in the current folder",
        received=module,
        fix=fix or "run from the folder with the module, or install its package",
    )


def _require_name(reference: str, names: Sequence[str]) -> None:
    module, _, name = reference.partition(":")
    if name not in names:
        fix = did_you_mean(name, names)
        raise UserError(
            f"{module} has no {name!r}.", expected=_EXPECTED, received=reference, fix=fix
        )


def import_module(name: str) -> ModuleType:
    """Import a module, also from the current folder, as ``python -m`` does."""
    folder = os.getcwd()
    # The folder stays in sys.path: the job's functions may import more of their package.
    if not sys.flags.safe_path and folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    # A new module may be missing in the import system's cached listing.
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the module itself or a parent package counts as "not found".
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _no_module(error.name, name) from error


def _resolve(reference: str) -> Any:
    module_name, name = check_reference(reference)
    module = import_module(module_name)
    if not hasattr(module, name):
        _require_name(reference, dir(module))
    return getattr(module, name)


def _require_annotation(reference: str, target: Any) -> None:
    """Raise unless a function is annotated as returning a Job."""
    # The annotation is never evaluated: under the __future__ import it is a string.
    annotation = getattr(inspect.unwrap(target), "__annotations__", {}).get("return")
    is_name = isinstance(annotation, str) and _NAMES_JOB.fullmatch(annotation)
    if annotation is not Job and not is_name:
        named = type(target).__name__ if annotation is None else f"-> {annotation}"
        raise _not_annotated(reference, named)


def _not_annotated(reference: str, received: str) -> UserError:
    return UserError(
        f"{reference} is not annotated as returning a Job, so it is not called.",
        expected="a Job, or a function: def job(...) -> tfopt.Job:",
        received=received,
        fix="if it returns a Job, write -> tfopt.Job before the colon of that line",
    )
