"""Measures a job along a chain in front of a person: progress, table, files, what to do next.

Guarantees: Ctrl-C and a request to terminate end the workers, leave what was measured as a valid
report, and are told by the exit code; two measurements never share a folder.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from tfopt.bench.walk import Interrupted, Plan, walk
from tfopt.files import alone_in, write_atomically
from tfopt.job import Chain
from tfopt.recipes.display import Display
from tfopt.report.html import render_html
from tfopt.report.markdown import render_markdown
from tfopt.report.schema import Report
from tfopt.report.terminal import print_in_any_encoding, render_terminal

FAILED = 1
INTERRUPTED = 130


def measure_and_show(
    *,
    title: str,
    command: str,
    job: str,
    chain: Chain,
    output: Path,
    arguments: Mapping[str, Any],
) -> int:
    """Walks the chain and leaves report.json, report.md and report.html in ``output``."""
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
        console.print(render_terminal(report))
        publish(report, output)
        console.print(f"Report and files: {output.resolve()}", soft_wrap=True)
    if code == INTERRUPTED:
        console.print(f"Interrupted: {_left_behind(report, output)}.", soft_wrap=True)
    elif any(row.status == "failed" for row in report.rows):
        code = FAILED
    return code


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """``kill`` and a container's stop end a measurement as Ctrl-C does."""

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


def publish(report: Report, folder: Path) -> None:
    """Writes the three forms of a report, each file whole or not at all."""
    write_atomically(folder / "report.json", report.to_json())
    write_atomically(folder / "report.md", render_markdown(report))
    write_atomically(folder / "report.html", render_html(report))
