"""Read the file of a report, or name what it is instead, and show it.

A renderer is loaded when it is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.report.bench.bench_report import BenchReport, read_bench_report

if TYPE_CHECKING:
    from rich.console import RenderableType

NAME = "bench.json"


def read_any(path: str | Path) -> BenchReport:
    """Return the report in a file, or in a folder with a bench.json.

    Example:
        >>> print(as_markdown(read_any("cnn_mnist_report")))
    """
    path = Path(path)
    if path.is_dir():
        if not (path / NAME).is_file():
            raise UserError(
                f"{path} is a folder that holds no report.",
                expected=f"a {NAME}, or a folder with one",
                received=", ".join(sorted(each.name for each in path.glob("*.json"))) or "neither",
                fix="name the file, or measure again: `tfopt run` and `tfopt bench` write one",
            )
        path = path / NAME
    return read_bench_report(path)


def as_html(report: BenchReport) -> str:
    """Return the page of a report."""
    from tfopt.report.bench.bench_html import render_bench_html

    return render_bench_html(report)


def as_markdown(report: BenchReport) -> str:
    """Return the Markdown of a report."""
    from tfopt.report.bench.renderers import render_bench_markdown

    return render_bench_markdown(report)


def as_terminal(report: BenchReport) -> RenderableType:
    """Return what a ``rich`` console prints of a report."""
    from tfopt.report.bench.renderers import render_bench_terminal

    return render_bench_terminal(report)


def publish(report: BenchReport, folder: Path) -> None:
    """Write a report as JSON, Markdown and HTML, each file whole or not at all."""
    write_atomically(folder / NAME, report.to_json())
    write_atomically(folder / "bench.md", as_markdown(report))
    write_atomically(folder / "bench.html", as_html(report))
