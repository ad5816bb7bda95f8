"""Show a search or an experiment to a person: progress with time left, what is done, files.

Ctrl-C and a request to terminate end the worker, leave what was measured as a valid report, and
show in the exit code; two measurements never share a folder.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tfopt.errors import UserError
from tfopt.files import alone_in, prepare_folder, write_atomically
from tfopt.measure.experiment import Experiment, Interrupted, carry_out
from tfopt.measure.rehearsal import Rehearsed
from tfopt.measure.targets import Target
from tfopt.measure.tune import Watcher as SearchWatcher
from tfopt.measure.tune import tune
from tfopt.measure.tuned import Tuned
from tfopt.measure.watcher import Watcher
from tfopt.recipes.flags import FAILED, INTERRUPTED
from tfopt.report.bench_report import BenchReport
from tfopt.report.block import Block
from tfopt.report.documents import publish
from tfopt.report.terminal import as_terminal
from tfopt.report.training import Figures

RECIPE = "tuned.toml"
_DRAWN_A_SECOND = 2


def bench_and_show(experiment: Experiment, output: Path, *, resume: bool) -> int:
    """Carry the experiment out and leave bench.json, bench.md and bench.html in ``output``."""
    console = Console()
    code = 0
    display = _BenchDisplay(console, output)
    with alone_in(output), termination_as_interrupt(), display:
        try:
            report: BenchReport | None = carry_out(experiment, output, display, resume=resume)
        except Interrupted as stop:
            report, code = stop.report, INTERRUPTED
    if report is not None:
        publish(report, output)
        console.print(as_terminal(report))
        console.print(f"Report and files: {output.resolve()}", soft_wrap=True)
    if code == INTERRUPTED:
        console.print("Interrupted: what was measured is kept; go on with --resume.")
    elif report is not None and any(each.status == "failed" for each in report.variants):
        code = FAILED
    return code


def tune_and_show(target: Target, output: Path, *, reports: Path, **settings: Any) -> Tuned:
    """Find the fastest chain; leave it in ``output`` as tuned.toml, the report in ``reports``."""
    console = Console()
    with alone_in(output), termination_as_interrupt(), _SearchDisplay(console) as display:
        tuned = tune(target.job, arguments=target.arguments, watcher=display, **settings)
        publish(tuned.report, prepare_folder(reports))
        (output / RECIPE).unlink(missing_ok=True)
        try:
            tuned.write_recipe(output / RECIPE)
        except UserError as error:  # an argument that no file can hold
            console.print(f"{RECIPE} was not written: {error}", markup=False, soft_wrap=True)
    return tuned


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """End a measurement at ``kill`` and a container's stop as at Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Display:
    """A progress line for what runs, and a line for what is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[where]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            refresh_per_second=_DRAWN_A_SECOND,
        )
        self._task = self._progress.add_task("", total=None, left="", where="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _begin(self, line: str, left: str) -> None:
        description = line.replace("[", r"\[")
        self._progress.reset(self._task, description=description, total=None, left=left, where="")
        if not self._console.is_terminal:
            self._say(f"{line}{f', {left}' if left else ''} ...")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _SearchDisplay(_Display, SearchWatcher):
    """Shows the trials of a search for the fastest chain."""

    def doing(self, what: str, candidate: str, left_s: float) -> None:
        self._begin(f"{candidate}: {what}", f"{max(left_s, 0):.0f} s of the budget left")

    def found(self, line: str) -> None:
        self._say(f"  {line}")


class _BenchDisplay(_Display, Watcher):
    """Shows an experiment; bench.json grows with each round."""

    def __init__(self, console: Console, output: Path) -> None:
        super().__init__(console)
        self._output = output

    def doing(self, what: str, variant: str, left_s: tuple[float, float] | None) -> None:
        self._begin(f"{variant}: {what}", "" if left_s is None else _left(*left_s))

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

    def round_ended(self, report: BenchReport) -> None:
        write_atomically(self._output / "bench.json", report.to_json())


def _left(least_s: float, most_s: float) -> str:
    least, most = _duration(least_s), _duration(most_s)
    lasts = least if least == most else f"{least} to {most}"
    return f"{lasts} of rounds left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
