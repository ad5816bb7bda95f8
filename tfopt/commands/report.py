"""Show a bench.json, or turn it into Markdown, HTML or JSON: ``tfopt report``."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Any

from tfopt.commands import arguments
from tfopt.recipes.flags import add_flags


def add_report(commands: Any) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        "report",
        _report,
        help="show a report, or turn it into Markdown or HTML",
        description="Prints the report that `tfopt bench`, `tfopt tune` or a recipe has written.\n",
        epilog="examples:\n"
        "  tfopt report cnn_mnist_report\n"
        "  tfopt report cnn_mnist_report --format md > report.md\n"
        "exit codes: 0, or 5 for a file that is cut off or no report\n",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a bench.json, or its folder")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=("terminal", "md", "html"),
        default="terminal",
        help="tables for the terminal, Markdown, or a page (default: terminal)",
    )
    add_flags(form, "--json")


def _report(options: argparse.Namespace) -> int:
    from rich.console import Console

    from tfopt.report.bench_report import read_bench_report
    from tfopt.report.html import as_html
    from tfopt.report.markdown import as_markdown
    from tfopt.report.terminal import as_terminal
    from tfopt.report.view import view_of

    report = read_bench_report(options.file)
    if options.json:
        print(report.to_json(), end="")
        return 0
    if options.format == "terminal":
        Console().print(as_terminal(view_of(report)))
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as both forms are written to files
    print(as_markdown(view_of(report)) if options.format == "md" else as_html(report))
    return 0
