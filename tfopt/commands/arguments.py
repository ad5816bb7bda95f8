"""Add the flags that several commands share, and print answers with their exit codes.

For commands that decide something in continuous integration no failure looks like an answer:
neither a broken file, a defect of tfopt nor a reader that went away ends with the code of a verdict
that was not reached.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError
from tfopt.recipes.flags import (
    add_chain,
    add_set,
    add_trust,
    assignments,
    count,
    duration,
    in_flags,
    points,
)

if TYPE_CHECKING:
    from tfopt.measure.targets import Target

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
    parser.set_defaults(action=action, parser=parser)
    return parser


def add_job(parser: argparse.ArgumentParser, nargs: str | None = None, *, chain: bool) -> None:
    """Add the job, and what belongs to it: ``--set``, ``--trust-functions``, ``--chain``."""
    parser.add_argument(
        "job",
        nargs=nargs,
        metavar="JOB",
        help="package.module:name of a function annotated -> tfopt.Job, or of a Job; a recipe "
        "module; or a recipe file (.toml). The module is imported, which runs it",
    )
    if chain:
        add_chain(parser)
    add_set(parser)
    add_trust(parser)


def target_of(options: argparse.Namespace, job: str | None = None) -> Target:
    """Return the job with its arguments and its chain: that of ``--chain``, else its own."""
    from tfopt.job.recipe_file import read_recipe
    from tfopt.measure.targets import resolve_target

    values, trust = assignments(options.set), options.trust_functions
    with json_alone(options):  # the module may print as it is imported
        target = resolve_target(job or options.job, values, trust_functions=trust)
    file = getattr(options, "chain", None)
    if file is None:
        return target
    return replace(target, chain=read_recipe(file, trust_functions=trust).chain)


def output_folder(options: argparse.Namespace, target: Target, ending: str) -> Path:
    """Return the folder for the results: ``--output``, or by the job's name."""
    name = re.sub(r"[^\w-]", "_", target.name)
    return (options.output or Path(f"{name}_{ending}")).expanduser()


def add_budget(parser: Any, text: str, usual: str, default: float | None) -> None:
    """Add ``--budget`` to a parser or to a group of one; ``usual`` names the default."""
    text = f"{text}: 90s, 5m or 1h (default: {usual})"
    parser.add_argument("--budget", type=duration, default=default, metavar="TIME", help=text)


def add_seeds(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``--seeds``; ``text`` says what is trained."""
    text = f"{text}; 0: none (default: 3)"
    parser.add_argument("--seeds", type=count, default=3, metavar="N", help=text)


def add_max_drop(
    parser: argparse.ArgumentParser, text: str = "points of accuracy that may be lost"
) -> None:
    """Add ``--max-drop``; ``text`` says what may be lost."""
    text = f"{text} (default: 0.5)"
    parser.add_argument("--max-drop", type=points, default=0.5, metavar="POINTS", help=text)


def add_json(parser: Any) -> None:
    """Add ``--json`` to a parser or to a group of one."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON alone")


@contextmanager
def json_alone(options: argparse.Namespace) -> Iterator[None]:
    """Under ``--json``, send what is printed meanwhile to standard error."""
    if not options.json:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


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
                print(f"error: {in_flags(str(error), options.parser)}", file=sys.stderr)
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
    from tfopt.measure.compare import NotComparable
    from tfopt.report.bench_report import DamagedReport

    if isinstance(error, DamagedReport):
        return BAD_FILE
    if isinstance(error, NotComparable):
        return NOT_COMPARABLE
    return USAGE if isinstance(error, UserError) else DEFECT
