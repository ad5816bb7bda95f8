"""The arguments by which several commands are told their job."""

from __future__ import annotations

import argparse
from pathlib import Path


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
