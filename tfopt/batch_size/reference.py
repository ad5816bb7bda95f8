"""How a job gets to the processes of a search: by the name of what makes it.

Guarantees: nothing of the job is imported or run here; what could not be found again in another
process is refused before anything is started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tfopt.errors import UserError
from tfopt.job import Job
from tfopt.references import check_reference

_WORKER = "tfopt.bench.worker"


def reference_of(job: str | Callable[..., Job]) -> str:
    """ "package.module:name" of a job or of a function that makes one."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == _WORKER:
        raise UserError(
            "find_batch_size() is called by the module of the job itself, in a trial's process.",
            expected="a module that can be imported without starting a search",
            received="a call while it is imported",
            fix="put the call under if __name__ == '__main__':",
        )
    if isinstance(job, str):
        check_reference(job)
        return job
    name = getattr(job, "__qualname__", None)
    if isinstance(job, Job) or not callable(job) or name is None or "<" in name:
        raise UserError(
            "A trial is a process of its own, and has to make the job anew.",
            expected='"package.module:name", or a function of a module: def job() -> tfopt.Job',
            received=f"a {type(job).__name__}" if name is None else name,
            fix="write such a function at the top of a module, and give it or its name",
        )
    module = job.__module__ if job.__module__ != "__main__" else _main_module()
    return f"{module}:{name}"


def _main_module() -> str:
    """The name by which a script that is running can be imported."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    path = getattr(main, "__file__", None)
    if path is None or Path(path).resolve().parent != Path.cwd() or not _importable(path):
        raise UserError(
            "The job's function is in a script that no other process can import.",
            expected="a function of a module, or of a script in the current folder",
            received=path or "an interactive session",
            fix="move the function into a module, and give it or its name: 'module:job'",
        )
    return Path(path).stem


def _importable(path: str) -> bool:
    return path.endswith(".py") and Path(path).stem.isidentifier()
