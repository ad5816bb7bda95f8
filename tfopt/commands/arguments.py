"""Add the flags that several commands share, and print answers."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.recipes.flags import add_flags, assignments, count, duration, points

if TYPE_CHECKING:
    from tfopt.measure.targets import Target

Action = Callable[[argparse.Namespace], int]


def add_command(commands: Any, name: str, action: Action, **texts: Any) -> argparse.ArgumentParser:
    """Add a command whose texts are shown with their own line breaks."""
    form = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(name, formatter_class=form, **texts)
    add_flags(parser, "--debug")
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
    add_flags(parser, *(["--chain"] if chain else []), "--set", "--trust-functions")


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


@contextmanager
def json_alone(options: argparse.Namespace) -> Iterator[None]:
    """Under ``--json``, send what is printed meanwhile to standard error."""
    if not options.json:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


def print_answer(text: str) -> None:
    """Print what the exit code says too, which stays as it is where the reader has gone."""
    try:
        print(text.rstrip("\n"))
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()


def drop_output() -> None:
    """Write the rest of standard output nowhere: its reader has seen enough, as ``head`` has."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
