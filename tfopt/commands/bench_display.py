"""Show an experiment to a person: progress with the time left, a line for each block, files.

Ctrl-C and a request to terminate end the worker, leave what was measured as a valid report, and
show in the exit code; two measurements never share a folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tfopt.files import alone_in
from tfopt.measure.experiment import Experiment
from tfopt.measure.rehearsal import Rehearsed
from tfopt.recipes.flags import FAILED, INTERRUPTED
from tfopt.report.bench.bench_report import BenchReport, write_bench_report
from tfopt.report.bench.block import Block
from tfopt.report.documents import as_terminal, publish


def bench_and_show(
    experiment: Experiment, output: Path, *, resume: bool, tensorboard: Path | None = None
) -> int:
    """Carry the experiment out and leave bench.json, bench.md and bench.html in ``output``."""
    from tfopt.measure.experiment import Interrupted, carry_out
    from tfopt.recipes.recipe_main import termination_as_interrupt
    from tfopt.report.terminal import print_in_any_encoding

    print_in_any_encoding(sys.stdout)
    console = Console()
    code = 0
    with alone_in(output), termination_as_interrupt(), _Display(console, output) as display:
        try:
            report: BenchReport | None = carry_out(experiment, output, display, resume=resume)
        except Interrupted as stop:
            report, code = stop.report, INTERRUPTED
    if report is not None:
        publish(report, output)
        console.print(as_terminal(report))
        console.print(f"Report: {output.resolve()}", soft_wrap=True)
        if tensorboard is not None:
            _write_scalars(console, report, tensorboard)
    if code == INTERRUPTED:
        kept = "what was measured is kept; go on with --resume"
        console.print(f"Interrupted: {kept}.", soft_wrap=True)
    elif report is not None and any(each.status == "failed" for each in report.variants):
        code = FAILED
    return code


def _write_scalars(console: Console, report: BenchReport, folder: Path) -> None:
    from tfopt.measure.bench_tensorboard import write_scalars

    write_scalars(report, folder)
    console.print(f"TensorBoard scalars: {folder.resolve()}", soft_wrap=True)


class _Display:
    """A progress line for what runs, a line for what is done; bench.json grows with each round."""

    def __init__(self, console: Console, output: Path) -> None:
        self._console = console
        self._output = output
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, left="")

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def doing(self, what: str, variant: str, left_s: tuple[float, float] | None) -> None:
        line = f"{variant}: {what}"
        left = "" if left_s is None else _left(*left_s)
        self._progress.reset(
            self._task, description=line.replace("[", r"\["), total=None, left=left
        )
        if not self._console.is_terminal:
            self._say(f"{line}{f', {left}' if left else ''} ...")

    def rehearsed(self, found: Rehearsed) -> None:
        if found.status != "measured":
            status = found.status.replace("_", " ")
            self._say(f"  {found.variant.name}: {status}: {found.reason}")

    def block_ended(self, variant: str, block: Block) -> None:
        spoiled = "" if block.invalid is None else f", does not count: {block.invalid}"
        self._say(f"  {variant}: {block.step_ms:.2f} ms a step{spoiled}")

    def left_out(self, variant: str, reason: str) -> None:
        self._say(f"  {variant}: failed: {reason}")

    def round_ended(self, report: BenchReport) -> None:
        write_bench_report(report, self._output / "bench.json")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _left(least_s: float, most_s: float) -> str:
    least, most = _duration(least_s), _duration(most_s)
    lasts = least if least == most else f"{least} to {most}"
    return f"{lasts} of rounds left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
