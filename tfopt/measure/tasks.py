"""The tasks that a worker process can carry out on a job, and their results.

A task is a frozen value that travels as JSON and reads back equal; so does what it measures.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tfopt.errors import UserError, first_line
from tfopt.files import write_atomically
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Effect
from tfopt.measure.blocks import Span
from tfopt.report.block import Block
from tfopt.report.footprint import Footprints
from tfopt.report.strict import decode
from tfopt.report.training import Figures
from tfopt.run import Outcome

Progress = Callable[[int, int], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """The values of a task as JSON; None where the last transform changed nothing on this machine.

    ``afterwards`` is what remains to be done once the values are safe: a crash in it loses none.
    """

    value: dict[str, Any] | None
    effects: tuple[tuple[Transform, Effect], ...]
    data: str
    afterwards: Callable[[], None] | None = None


class Task(Generic[T]):
    """Something to do with a job in a process of its own; ``gives`` is what it measures."""

    kind: ClassVar[str]
    gives: ClassVar[type[Any]]

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        """Do it in the worker, unless the transform ``added`` has no effect."""
        raise NotImplementedError

    def read(self, value: Mapping[str, Any]) -> T:
        """Return the figures of what ``carry_out`` gave, in the parent and after JSON."""
        found: T = decode(self.gives, dict(value))
        return found


@dataclass(frozen=True)
class Training(Task[Figures]):
    """Train the job as a whole, evaluated; its files are left in ``output``.

    ``serving`` is a folder for the LiteRT file that would serve it, for ``ServingInTurns``.
    """

    output: str | None = None
    serving: str | None = None

    kind: ClassVar[str] = "training"
    gives: ClassVar[type[Any]] = Figures

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        from tfopt.measure.one_variant import timed_training

        output = Path(self.output) if self.output else None
        done = timed_training(job, output=output, progress=progress)
        afterwards = None
        if self.serving:
            afterwards = partial(leave_serving_file, done.outcome, Path(self.serving))
        return Done(asdict(done.figures), done.outcome.effects, done.data, afterwards)


@dataclass(frozen=True)
class OneBlock(Task[Block]):
    """Measure the steps of the job until there are enough windows."""

    span: Span

    kind: ClassVar[str] = "block"
    gives: ClassVar[type[Any]] = Block

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        from tfopt.measure.blocks import measure_block

        block, effects = measure_block(job, self.span, skip_if_idle=added)
        value = None if block is None else asdict(block)
        return Done(value, effects, "" if block is None else block.data)


_HOMES = {
    "training": "tfopt.measure.tasks:Training",
    "block": "tfopt.measure.tasks:OneBlock",
    "look": "tfopt.measure.study:LookAtStep",
    "input-look": "tfopt.measure.input_doctor:LookAtInput",
    "ceilings": "tfopt.measure.study:MachineCeilings",
    "serving": "tfopt.measure.tasks:ServingInTurns",
    "batch-trial": "tfopt.measure.batch_size.trial:Trial",
    "job-look": "tfopt.measure.job_facts:LookAtJob",
}


def task_to_dict(task: Task[Any]) -> dict[str, Any]:
    """Return the task as JSON values."""
    return {"kind": task.kind, "settings": asdict(task)}  # type: ignore[call-overload]


def task_from_dict(content: Mapping[str, Any]) -> Task[Any]:
    """Return the task that :func:`task_to_dict` gave, after JSON."""
    module, _, name = _HOMES[content["kind"]].partition(":")
    task: Task[Any] = decode(getattr(import_module(module), name), content["settings"])
    return task


# What variants would serve, each left by its own process and compared in one more.
#
# Without the first one's file there are no ratios, rather than others.

_REASON = "reason.txt"
_DIED = "the process ended while its file was made"


def leave_serving_file(outcome: Outcome, folder: Path) -> None:
    """Write the file that would serve the model, or why there is none."""
    from tfopt.measure.serving import trained_file

    try:
        trained_file("", outcome.model, outcome.artefacts).write(folder)
    # A converter may fail in its own words; what was measured before does not depend on it.
    except Exception as error:
        traceback.print_exc()
        problem = error.what if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        # On a full disk there is no place for it; the row is then one that left nothing.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / _REASON, (problem.splitlines() or [""])[0])


@dataclass(frozen=True)
class ServingInTurns(Task[Footprints]):
    """Compare the files that were left in folders, by name; the job is not looked at."""

    folders: Mapping[str, str]

    kind: ClassVar[str] = "serving"
    gives: ClassVar[type[Any]] = Footprints

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        from tfopt.measure.model_footprint import compared
        from tfopt.measure.serving import ServingFile, one_inference

        files, missing = [], []
        for name, folder in self.folders.items():
            try:
                file = ServingFile.read(name, Path(folder))
                one_inference(file.content, 1)
                files.append(file)
            except FileNotFoundError:
                reason = Path(folder) / _REASON
                problem = reason.read_text(encoding="utf-8") if reason.exists() else _DIED
                missing.append(f"{name}: {problem}")
            # Of a file that is damaged anything can be wrong; the others are none the worse.
            except Exception as error:
                missing.append(f"{name}: its file cannot be used: {first_line(error)}")
        if not files:
            raise UserError(f"No row has a file for serving. {'; '.join(missing)}")
        first = next(iter(self.folders))
        if first not in {file.name for file in files}:
            missing.append(f"nothing is told against {first}, which has no file")
        found = asdict(compared(files, first=first))
        return Done({**found, "missing": missing}, (), "")
