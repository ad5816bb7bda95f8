"""Give a job another batch, or less memory, and leave the training as it is otherwise.

A transform that asks for a batch asks for the new one, wherever the job itself applied it; where
nothing can make batches of that size, it is an error by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tfopt.data.pipeline import Pipeline
from tfopt.distribute.replicas import Distribute
from tfopt.errors import UserError
from tfopt.job.job import Job, Transform
from tfopt.job.references import check_reference
from tfopt.train.placement import Place

# How a job gets to the processes of a search: by the name of what makes it.

_WORKER = "tfopt.measure.worker"


def reference_of(job: str | Callable[..., Job], caller: str = "find_batch_size") -> str:
    """Return "package.module:name" of a function that makes a job; ``caller`` asks for it."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == _WORKER:
        raise UserError(
            f"{caller}() is called by the module of the job itself, in a trial's process.",
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
    """Return the name by which a script that is running can be imported."""
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


def at_batch(job: Job, batch: int, *, tuned: int | None, rebatch: bool) -> Job:
    """Return the job with global batches of this size.

    Args:
        tuned: What its learning rate was chosen for, which stays.
        rebatch: Its data yields batches of its own, of which new ones are made.
    """
    for transform in job.applied:
        if isinstance(transform, Pipeline) and transform.batch_size is not None:
            job = _exchanged(job, transform, replace(transform, batch_size=batch))
        elif isinstance(transform, Distribute):
            asking = replace(transform, global_batch=batch, per_replica_batch=None)
            job = _exchanged(job, transform, asking)
    if rebatch:
        job = Pipeline(batch_size=batch).apply(job)
    return job.with_(batch_size=batch, tuned_batch_size=job.tuned_batch_size or tuned)


def with_gpu_limit(job: Job, limit_mib: int) -> Job:
    """Return the job on GPUs that give it so much; on a machine without one, the job."""
    for transform in job.applied:
        if isinstance(transform, Place):
            return _exchanged(job, transform, replace(transform, memory_limit_mib=limit_mib))
    return Place(memory_limit_mib=limit_mib).apply(job)


def require_other_batches(model: Any) -> None:
    """Refuse a model that was built for one batch size."""
    fixed = {
        int(each.shape[0])
        for each in getattr(model, "inputs", None) or ()
        if each.shape and each.shape[0] is not None
    }
    if fixed:
        size = ", ".join(map(str, sorted(fixed)))
        raise UserError(
            f"The model {model.name!r} takes batches of {size} only.",
            expected="a model whose batch is not fixed: keras.Input(shape)",
            received=f"an input with batch_size={size}",
            fix="leave batch_size and batch_shape out of keras.Input",
        )


def require_made(job: Job, asked: int, made: int | None) -> None:
    """Refuse an input function of the job's own that makes batches as it likes."""
    if made != asked:
        name = getattr(job.input, "__qualname__", None) or repr(job.input)
        raise UserError(
            f"Job.input ({name}) makes batches of {made}, whatever it is told.",
            expected=f"batches of {asked}, as Facts.batch_size tells it",
            received=f"batches of {made}",
            fix="let it batch by facts.batch_size, or give the data as arrays, or with Pipeline()",
        )


def _exchanged(job: Job, old: Transform, new: Transform) -> Job:
    """Return the job as if ``new`` had been applied in the place of ``old``.

    A transform acts by its own bound methods, which stand in the fields of the job.
    """

    def moved(step: Any) -> Any:
        same = getattr(step, "__self__", None) is old
        return getattr(new, step.__name__) if same else step

    changes: dict[str, Any] = {
        "applied": tuple(new if each is old else each for each in job.applied)
    }
    for each in fields(job):
        value = getattr(job, each.name)
        if each.name == "applied":
            continue
        changes[each.name] = tuple(map(moved, value)) if isinstance(value, tuple) else moved(value)
    return replace(job, **changes)
