"""What a worker process can be asked to do with a job, and what comes back.

Guarantees: a task is a frozen value that travels as JSON and reads back equal; making one loads
no TensorFlow; what it measures travels back as JSON values, which ``read`` turns into figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from tfopt.bench.block import Span
from tfopt.job import Effect, Job, Transform
from tfopt.report.bench.block import Block
from tfopt.report.schema import Figures, figures_from_dict, figures_to_dict
from tfopt.report.strict import decode

Progress = Callable[[int, int], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """JSON values; None where the last transform changed nothing on this machine.

    ``afterwards`` is what remains to be done once the values are safe: a crash in it loses none.
    """

    value: dict[str, Any] | None
    effects: tuple[tuple[Transform, Effect], ...]
    data: str
    afterwards: Callable[[], None] | None = None


class Task(Generic[T]):
    """Something to do with a job in a process of its own."""

    kind: ClassVar[str]

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        """In the worker; ``added`` is the transform without whose effect there is nothing to do."""
        raise NotImplementedError

    def read(self, value: Mapping[str, Any]) -> T:
        """In the parent: what ``carry_out`` gave, after JSON."""
        raise NotImplementedError


@dataclass(frozen=True)
class Training(Task[Figures]):
    """A whole training, evaluated; its files are left in ``output``.

    ``serving`` is a folder for the LiteRT file that would serve it, for ``ServingInTurns``.
    """

    output: str | None = None
    serving: str | None = None

    kind: ClassVar[str] = "training"

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        from tfopt.bench.measure import measure

        output = Path(self.output) if self.output else None
        done = measure(job, skip_if_idle=added, output=output, progress=progress)
        if done.figures is None or done.outcome is None:
            return Done(None, done.effects, done.data)
        afterwards = None
        if self.serving:
            from tfopt.bench.serving_in_turns import leave_serving_file

            afterwards = partial(leave_serving_file, done.outcome, Path(self.serving))
        return Done(figures_to_dict(done.figures), done.effects, done.data, afterwards)

    def read(self, value: Mapping[str, Any]) -> Figures:
        return figures_from_dict(value)


@dataclass(frozen=True)
class OneBlock(Task[Block]):
    """The steps of the job until there are enough windows."""

    span: Span

    kind: ClassVar[str] = "block"

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        from tfopt.bench.block import measure_block

        block, effects = measure_block(job, self.span, skip_if_idle=added)
        value = None if block is None else asdict(block)
        return Done(value, effects, "" if block is None else block.data)

    def read(self, value: Mapping[str, Any]) -> Block:
        return decode(Block, dict(value))


_HOMES = {
    "training": "tfopt.bench.tasks:Training",
    "block": "tfopt.bench.tasks:OneBlock",
    "look": "tfopt.bench.study:Look",
    "ceilings": "tfopt.bench.study:MachineCeilings",
    "serving": "tfopt.bench.serving_in_turns:ServingInTurns",
    "batch-look": "tfopt.batch_size.trial:Look",
    "batch-trial": "tfopt.batch_size.trial:Trial",
}


def task_to_dict(task: Task[Any]) -> dict[str, Any]:
    """The task as JSON values."""
    return {"kind": task.kind, "settings": asdict(task)}  # type: ignore[call-overload]


def task_from_dict(content: Mapping[str, Any]) -> Task[Any]:
    """What :func:`task_to_dict` gave, after JSON."""
    module, _, name = _HOMES[content["kind"]].partition(":")
    task: Task[Any] = decode(getattr(import_module(module), name), content["settings"])
    return task
