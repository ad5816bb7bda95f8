"""The arguments by which several commands are told their job."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfopt.errors import UserError

# Exit codes that are answers, for commands that decide something in continuous integration.
#
# Guarantees: no failure looks like an answer: neither a broken file, a defect of tfopt's own nor
# a reader that went away ends with the code of a verdict that was not reached.

PASS = 0
REGRESSION = 1
USAGE = 2
INCONCLUSIVE = 3
NOT_COMPARABLE = 4
BAD_FILE = 5
DEFECT = 70


def answered(work: Callable[[], tuple[str, int]], *, debug: bool) -> int:
    """Prints the text that ``work`` returns; its code is the answer, and an error's is another."""
    try:
        text, code = work()
        _print(text)
    except Exception as error:
        code = _code_of(error)
        if debug or code == DEFECT:
            # Python itself would end with 1, which says "regression".
            traceback.print_exc()
        else:
            print(f"error: {error}", file=sys.stderr)
    return code


def _print(text: str) -> None:
    from tfopt.report.terminal import print_in_any_encoding

    print_in_any_encoding(sys.stdout)
    try:
        print(text.rstrip("\n"))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough, as `head` has; the answer stays what it is.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code_of(error: Exception) -> int:
    from tfopt.errors import UserError
    from tfopt.measure.comparability import NotComparable
    from tfopt.report.bench.bench_report import DamagedReport

    if isinstance(error, DamagedReport):
        return BAD_FILE
    if isinstance(error, NotComparable):
        return NOT_COMPARABLE
    return USAGE if isinstance(error, UserError) else DEFECT


# ``--set NAME=VALUE``: arguments of a job function on the command line.


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; a value is read as JSON where it is JSON, else as text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UserError("--set takes NAME=VALUE.", expected="--set epochs=2", received=pair)
        try:
            values[name] = json.loads(text)
        except json.JSONDecodeError:
            values[name] = text
    return values


def add_job(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Adds ``--job``, ``--set`` and ``--chain``."""
    parser.add_argument(
        "--job",
        required=required,
        help="package.module:name of a Job, or of a function giving one",
    )
    add_set(parser)
    parser.add_argument(
        "--chain", type=Path, metavar="FILE", help="a recipe file whose chain to put on the job"
    )


def add_set(parser: argparse.ArgumentParser) -> None:
    """Adds ``--set``."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the job function; may be repeated",
    )
