"""Carry out a search or a measurement for a person: progress, a table, files.

Ctrl-C ends the processes, leaves what was measured as a valid report, and shows in the exit code;
two measurements never share a folder.
"""

from __future__ import annotations

from pathlib import Path

from tfopt.errors import UserError
from tfopt.files import alone_in
from tfopt.measure.bench import bench
from tfopt.measure.bench_plan import BenchPlan
from tfopt.recipes.flags import FAILED, INTERRUPTED
from tfopt.report.bench_report import BenchReport
from tfopt.report.display import Display
from tfopt.report.documents import Report
from tfopt.report.terminal import as_terminal
from tfopt.report.view import view_of
from tfopt.tune.search import Search
from tfopt.tune.tune import Tuned, tuned

RECIPE = "tuned.toml"


def bench_and_show(
    plan: BenchPlan, output: Path, display: Display
) -> tuple[BenchReport | None, int]:
    """Leave bench.json, bench.md and bench.html in ``output``; return the report and exit code."""
    console = display.console
    with alone_in(output):
        try:
            with display:
                report = bench(plan, display, output)
        except KeyboardInterrupt:
            console.print("Interrupted: nothing was measured yet.")
            return None, INTERRUPTED
        Report(report).save(output)
    console.print(as_terminal(view_of(report)))
    console.print(f"Report and files: {output.resolve()}", soft_wrap=True)
    if not report.complete:
        console.print("Interrupted: what was measured is in the report.")
        return report, INTERRUPTED
    failed = any(each.status == "failed" for each in report.variants)
    return report, FAILED if failed else 0


def tune_and_show(
    search: Search, output: Path, display: Display, *, reports: Path | None = None
) -> Tuned:
    """Find the fastest chain; leave it in ``output`` as tuned.toml, the report in ``reports``."""
    with alone_in(output):
        found = tuned(search, display)
        Report(found.report).save(reports or output)
        (output / RECIPE).unlink(missing_ok=True)
        try:
            found.write_recipe(output / RECIPE)
        except UserError as error:  # an argument that no file can hold
            print(f"{RECIPE} was not written: {error}")
    return found
