"""Run a recipe from its command line: flags, live progress, a table, the report files.

``--help`` and wrong flags are answered without loading TensorFlow; Ctrl-C leaves a valid report of
what was measured.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tfopt.errors import UserError
from tfopt.files import alone_in, prepare_folder
from tfopt.job.job import Chain
from tfopt.job.roster import transform_name
from tfopt.measure.walk import Interrupted, Plan, walk
from tfopt.monitor.outlets.live_view import LAST_S, LiveView
from tfopt.monitor.sampler import Sampler, sampling
from tfopt.recipes.flags import (
    FAILED,
    INTERRUPTED,
    Parser,
    add_debug,
    add_output,
    exit_code_of,
)
from tfopt.report.documents import as_terminal, publish
from tfopt.report.schema import Report, Row
from tfopt.report.terminal import print_in_any_encoding

_SAMPLE_S = 1.0
_DRAWN_A_SECOND = 2
_DATA_SOURCES = ("auto", "tfds", "embedded", "synthetic")


class Display:
    """A progress bar for the row being measured, a line for each finished one.

    A terminal also shows GPUs and host; a machine that cannot be sampled is not shown.
    """

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


def measure_and_show(
    *,
    title: str,
    command: str,
    job: str,
    chain: Chain,
    output: Path,
    arguments: Mapping[str, Any],
) -> int:
    """Walk the chain, and leave report.json, report.md and report.html in ``output``."""
    print_in_any_encoding(sys.stdout)
    console = Console()
    plan = Plan(title, command, job, chain, output, arguments)
    code = 0
    with alone_in(output), termination_as_interrupt(), Display(console) as display:
        for left in output.glob(".tfopt-*/"):
            shutil.rmtree(left, ignore_errors=True)  # by a walk that was killed
        try:
            report = walk(plan, display, lambda report: publish(report, output))
        except Interrupted as stop:
            report, code = stop.report, INTERRUPTED
    if report.rows:
        console.print(as_terminal(report))
        publish(report, output)
        console.print(f"Report and files: {output.resolve()}", soft_wrap=True)
    if code == INTERRUPTED:
        console.print(f"Interrupted: {_left_behind(report, output)}.", soft_wrap=True)
    elif any(row.status == "failed" for row in report.rows):
        code = FAILED
    return code


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


def _left_behind(report: Report, output: Path) -> str:
    if report.rows:
        return "the rows measured so far are in the report"
    older = output / "report.json"
    return f"nothing measured{f'; {older} is from an earlier run' if older.exists() else ''}"


def recipe_main(job: str, chain: Chain, *, title: str) -> int:
    """Parse the flags, measure the job along the chain, show it, and return the exit code."""
    options = _parser(title, chain).parse_args()
    return exit_code_of(
        lambda: measure_and_show(
            title=title,
            command=f"python -m {job.partition(':')[0]} {shlex.join(sys.argv[1:])}".strip(),
            job=job,
            chain=_selected(chain, options.transforms, options.skip),
            output=prepare_folder(options.output),
            arguments={
                name: getattr(options, name)
                for name in ("data", "batch_size", "epochs", "steps", "seed")
            },
        ),
        debug=options.debug,
    )


def _parser(title: str, chain: Chain) -> Parser:
    names = ", ".join(_names_in(chain))
    parser = Parser(description=f"Measure {title} as it is and under each prefix of its chain.")
    add = parser.add_argument
    add("--data", choices=_DATA_SOURCES, default="auto", help="where the examples come from")
    add("--batch-size", type=_count, default=32, metavar="N", help="batch of the baseline")
    # As it was spelled in version 0.1.0.
    add("--batch_size", type=_count, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--epochs", type=_count, default=3, metavar="N", help="epochs of every row")
    add("--steps", type=_count, metavar="N", help="steps an epoch (default: the whole data set)")
    add("--seed", type=int, default=0, help="seed of weights and shuffling")
    add(
        "--transforms",
        type=_names,
        default=["all"],
        metavar="A,B",
        help=f"which to apply, of: {names} (default: all)",
    )
    add("--skip", type=_names, default=[], metavar="A,B", help="transforms to leave out")
    add_output(parser, f"{title}_report", Path(f"{title}_report"))
    add_debug(parser)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _names_in(chain: Chain) -> list[str]:
    return [transform_name(part) for part in chain.parts]


def _selected(chain: Chain, wanted: Sequence[str], skipped: Sequence[str]) -> Chain:
    """Return the chain without what the flags leave out; an unknown name is an error."""
    names = _names_in(chain)
    for name in (*wanted, *skipped):
        if name not in names and name != "all":
            raise UserError(
                f"This recipe has no transform {name!r}.",
                expected=f"all, or some of {', '.join(names)}",
                received=name,
            )
    keep = set(names) if "all" in wanted else set(wanted)
    keep -= set(skipped)
    return Chain(tuple(part for part in chain.parts if transform_name(part) in keep))
