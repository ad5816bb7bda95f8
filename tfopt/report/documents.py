"""Read any file that tfopt wrote as a report, and show either kind.

A renderer is loaded when it is asked for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.report.bench.bench_report import BenchReport, read_bench_report
from tfopt.report.schema import Report, read_report

if TYPE_CHECKING:
    from rich.console import RenderableType

# The schema is the first key of what tfopt writes.
_HEAD = 200
_BENCH = BenchReport.schema.partition("/")[0]
_TRAINING = Report.schema.partition("/")[0]


def read_any(path: str | Path) -> Report | BenchReport:
    """Return the report in a report.json or a bench.json, or in a folder with one of them.

    Example:
        >>> print(as_markdown(read_any("cnn_mnist_report")))
    """
    path = _report_in(Path(path)) if Path(path).is_dir() else path
    kind = _kind(Path(path))
    if kind == _BENCH:
        return read_bench_report(path)
    if kind is None or kind == _TRAINING:
        return read_report(path)
    raise UserError(
        f"{path} is not a report of tfopt.",
        expected=f'"schema": "{Report.schema}" or "{BenchReport.schema}"',
        received=f'"schema": "{kind}"',
        fix="give a report.json of `tfopt run` or a bench.json of `tfopt bench`",
    )


def _report_in(folder: Path) -> Path:
    there = [path for name in ("report.json", "bench.json") if (path := folder / name).is_file()]
    if len(there) != 1:
        raise UserError(
            f"{folder} is a folder that holds {'both' if there else 'no report'}.",
            expected="a report.json or a bench.json, or a folder with one of them",
            received=", ".join(path.name for path in there) or "neither",
            fix="name the file",
        )
    return there[0]


def _kind(path: Path) -> str | None:
    """Return the family of a file's schema; None where the reader is to say what is wrong."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        # A bench.json that was cut off is one still.
        return _BENCH if f'"{_BENCH}/' in text[:_HEAD] else None
    schema = content.get("schema") if isinstance(content, dict) else None
    return schema.partition("/")[0] if isinstance(schema, str) else None


def as_html(report: Report | BenchReport) -> str:
    """Return the page of either kind."""
    if isinstance(report, BenchReport):
        from tfopt.report.bench.bench_html import render_bench_html

        return render_bench_html(report)
    from tfopt.report.html import render_html

    return render_html(report)


def as_markdown(report: Report | BenchReport) -> str:
    """Return the Markdown of either kind."""
    if isinstance(report, BenchReport):
        from tfopt.report.bench.renderers import render_bench_markdown

        return render_bench_markdown(report)
    from tfopt.report.markdown import render_markdown

    return render_markdown(report)


def as_terminal(report: Report | BenchReport) -> RenderableType:
    """Return what a ``rich`` console prints of either kind."""
    if isinstance(report, BenchReport):
        from tfopt.report.bench.renderers import render_bench_terminal

        return render_bench_terminal(report)
    from tfopt.report.terminal import render_terminal

    return render_terminal(report)


def publish(report: Report | BenchReport, folder: Path) -> None:
    """Write a report as JSON, Markdown and HTML, each file whole or not at all."""
    name = "bench" if isinstance(report, BenchReport) else "report"
    write_atomically(folder / f"{name}.json", report.to_json())
    write_atomically(folder / f"{name}.md", as_markdown(report))
    write_atomically(folder / f"{name}.html", as_html(report))
