"""What a person sees while rows are measured: the row, how far it is, and the machine under it.

Guarantees: GPUs and host are shown in a terminal alone, sampled once a second and drawn twice; a
machine that cannot be sampled is not shown, and nothing else changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tfopt.monitor.outlets.live_view import LAST_S, LiveView
from tfopt.monitor.sampler import Sampler, sampling
from tfopt.report.schema import Row

_SAMPLE_S = 1.0
_DRAWN_A_SECOND = 2


class Display:
    """A progress bar for the row being measured, a line for each finished one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = _OverTheMachine(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[where]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=_DRAWN_A_SECOND,
        )
        self._task = self._progress.add_task("", total=None, where="")
        self._stack = ExitStack()

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._progress.sampler = self._stack.enter_context(
                sampling(
                    os.getpid(),
                    clock=self._progress.get_time,
                    wanted="all",
                    period_s=_SAMPLE_S,
                )
            )
        self._stack.enter_context(self._progress)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def started(self, name: str, number: int, total: int) -> None:
        self._progress.reset(
            self._task,
            description=f"[{number}/{total}] {name}".replace("[", r"\["),
            total=None,
            where="starting",
        )
        if not self._console.is_terminal:
            self._console.print(f"{number}/{total} {name} ...", markup=False)

    def progress(self, epoch: int, epochs: int, step: int) -> None:
        self._progress.update(
            self._task,
            total=epochs,
            completed=epoch,
            where=f"epoch {epoch + 1}/{epochs} step {step}",
        )

    def finished(self, row: Row) -> None:
        self._console.print(f"  {row.name}: {_short(row)}", markup=False, highlight=False)


class _OverTheMachine(Progress):
    """A progress bar with GPUs and host below it, as soon as there is somebody who samples."""

    sampler: Sampler | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        newest = None if self.sampler is None else self.sampler.newest()
        if self.sampler is not None and newest is not None:
            yield LiveView(self.sampler.recording(newest.at_s - LAST_S), "")


def _short(row: Row) -> str:
    figures = row.figures
    if figures is None:
        return f"{row.status.replace('_', ' ')}: {row.reason}"
    step = "n/a" if figures.step_ms_median is None else f"{figures.step_ms_median:.2f} ms a step"
    accuracy = "" if figures.test_accuracy is None else f", accuracy {figures.test_accuracy:.2%}"
    return f"{step}, trained in {figures.train_s:.1f} s{accuracy}"
