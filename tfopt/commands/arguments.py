"""Add the flags that several commands share, and print answers with their exit codes.

For commands that decide something in continuous integration no failure looks like an answer:
neither a broken file, a defect of tfopt nor a reader that went away ends with the code of a verdict
that was not reached.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tfopt.errors import UserError
from tfopt.recipes.flags import add_chain as add_chain
from tfopt.recipes.flags import add_resume as add_resume
from tfopt.recipes.flags import add_set as add_set
from tfopt.recipes.flags import add_trust as add_trust
from tfopt.recipes.flags import assignments as assignments

PASS = 0
REGRESSION = 1
USAGE = 2
INCONCLUSIVE = 3
NOT_COMPARABLE = 4
BAD_FILE = 5
DEFECT = 70

Action = Callable[[argparse.Namespace, list[str]], int]


def add_command(
    commands: Any, common: argparse.ArgumentParser, name: str, action: Action, **texts: Any
) -> argparse.ArgumentParser:
    """Add a command whose texts are shown with their own line breaks."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        parents=[common],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **texts,
    )
    parser.set_defaults(action=action)
    return parser


def add_job(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add ``--job`` and ``--set``."""
    parser.add_argument(
        "--job",
        required=required,
        help="package.module:name of your own Job, or of a function annotated as returning one; "
        "its module is imported, which runs it",
    )
    add_set(parser)


def add_tolerance(parser: argparse.ArgumentParser) -> None:
    """Add ``--tolerance``."""
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.5,
        metavar="POINTS",
        help="loss of accuracy that counts as none, in hundredths (default: 0.5)",
    )


def add_json(parser: Any) -> None:
    """Add ``--json`` to a parser or to a group of one."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_comparison(parser: argparse.ArgumentParser) -> None:
    """Add ``--variant`` and ``--force``, for what compares two reports."""
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one (A=B: A of the first report against B of the second); may be repeated",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="compare what is not comparable; every line then says so",
    )


def answering(work: Callable[[argparse.Namespace], tuple[str, int]]) -> Action:
    """Return a command that prints the text of ``work`` and ends with its code or an error's."""

    def action(options: argparse.Namespace, given: list[str]) -> int:
        try:
            text, code = work(options)
            _print(text)
        except Exception as error:
            code = _code_of(error)
            if options.debug or code == DEFECT:
                # Python itself would end with 1, which says "regression".
                traceback.print_exc()
            else:
                print(f"error: {error}", file=sys.stderr)
        return code

    return action


def _print(text: str) -> None:

    try:
        print(text.rstrip("\n"))
        sys.stdout.flush()
    except BrokenPipeError:
        # The answer stays what it is.
        drop_output()


def drop_output() -> None:
    """Write the rest of standard output nowhere: its reader has seen enough, as ``head`` has."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code_of(error: Exception) -> int:
    from tfopt.measure.comparability import NotComparable
    from tfopt.report.bench_report import DamagedReport

    if isinstance(error, DamagedReport):
        return BAD_FILE
    if isinstance(error, NotComparable):
        return NOT_COMPARABLE
    return USAGE if isinstance(error, UserError) else DEFECT
