"""Put two reports of ``tfopt bench`` side by side: ``tfopt compare``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tfopt.commands import arguments

_DESCRIPTION = """\
Puts two reports of `tfopt bench` side by side: for each variant that both measured the step
times, the ratio B/A with its interval of 95 % and what may be said of it, the start, and the
memory; then everything in which the two measurements differ.

What the machine itself did between two measurements is in no interval.
"""
_CODES = """\
exit codes:
  0  compared
  2  usage: a wrong argument
  4  not comparable: another machine, other versions, other data; or no variant in common
  5  bad file: cut off, edited by hand, or no report
"""


def add_compare(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        common,
        "compare",
        arguments.answering(_answer),
        help="two reports of `tfopt bench` side by side",
        description=_DESCRIPTION,
        epilog=_CODES,
    )
    parser.add_argument("first", type=Path, metavar="A", help="a bench.json")
    parser.add_argument("second", type=Path, metavar="B", help="another bench.json")
    parser.add_argument("--format", choices=("terminal", "md", "json"), default="terminal")
    arguments.add_comparison(parser)


def _answer(options: argparse.Namespace) -> tuple[str, int]:
    from tfopt.measure.side_by_side import Named, side_by_side
    from tfopt.report.compared import SideBySide, as_markdown, as_terminal_text

    first, second = map(Named.read, (options.first, options.second))
    found = side_by_side(first, second, variants=options.variant, force=options.force)
    render = {"terminal": as_terminal_text, "md": as_markdown, "json": SideBySide.to_json}
    compared = any(line.comparison is not None for line in found.lines)
    code = arguments.PASS if compared else arguments.NOT_COMPARABLE
    return render[options.format](found), code
