"""Show on the terminal how far an experiment or a search is, and what it found."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tfopt.measure.rehearsal import Rehearsed
from tfopt.measure.watcher import Watcher
from tfopt.report.block import Block
from tfopt.report.training import Figures

_DRAWN_A_SECOND = 2


class Display(Watcher):
    """A progress line for what runs, and a line for what is done."""

    def __init__(self) -> None:
        self._console = Console()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[where]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            refresh_per_second=_DRAWN_A_SECOND,
        )
        self._task = self._progress.add_task("", total=None, left="", where="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def doing(self, what: str, variant: str, left_s: tuple[float, float] | None) -> None:
        line, left = f"{variant}: {what}", "" if left_s is None else _left(*left_s)
        description = line.replace("[", r"\[")
        self._progress.reset(self._task, description=description, total=None, left=left, where="")
        if not self._console.is_terminal:
            self._say(f"{line}{f', {left}' if left else ''} ...")

    def rehearsed(self, found: Rehearsed) -> None:
        if found.status != "measured":
            status = found.status.replace("_", " ")
            self._say(f"  {found.variant.name}: {status}: {found.reason}")

    def block_ended(self, variant: str, block: Block) -> None:
        spoiled = "" if block.invalid is None else f", does not count: {block.invalid}"
        self._say(f"  {variant}: {block.step_ms:.2f} ms a step{spoiled}")

    def progress(self, epoch: int, epochs: int, step: int) -> None:
        self._progress.update(self._task, where=f"epoch {epoch + 1}/{epochs} step {step}")

    def trained(self, variant: str, figures: Figures) -> None:
        accuracy = figures.test_accuracy
        reached = "" if accuracy is None else f", test accuracy {accuracy:.2%}"
        self._say(f"  {variant}: trained in {figures.train_s:.1f} s{reached}")

    def left_out(self, variant: str, reason: str) -> None:
        self._say(f"  {variant}: failed: {reason}")

    def found(self, line: str) -> None:
        self._say(f"  {line}")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _left(least_s: float, most_s: float) -> str:
    least, most = _duration(least_s), _duration(most_s)
    lasts = least if least == most else f"{least} to {most}"
    return f"{lasts} left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
