"""Run the ``tfopt`` command, whose ``--help`` answers without loading TensorFlow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from tfopt import __version__
from tfopt.commands.arguments import drop_output
from tfopt.commands.batch_size import add_batch_size
from tfopt.commands.bench import add_bench
from tfopt.commands.compare import add_compare
from tfopt.commands.doctor import add_doctor
from tfopt.commands.export import add_export, add_optimize
from tfopt.commands.hardware import add_hardware
from tfopt.commands.launch import add_launch, cut_command
from tfopt.commands.monitor import add_monitor
from tfopt.commands.report import add_report
from tfopt.commands.tune import add_tune
from tfopt.job.versions import library_versions
from tfopt.recipes.flags import Parser, exit_code_of

_COMMANDS = (
    add_tune,
    add_bench,
    add_compare,
    add_report,
    add_export,
    add_optimize,
    add_batch_size,
    add_hardware,
    add_doctor,
    add_monitor,
    add_launch,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Example:
        >>> main(["report", "cnn_mnist_report/bench.json", "--format", "md"])
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours, command = cut_command(given)
    try:
        options = _parser().parse_args(ours, argparse.Namespace(command=command, given=given))
        code = exit_code_of(
            lambda: options.action(options), debug=options.debug, parser=options.parser
        )
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python would complain again at exit.
        drop_output()
        return 0


class _ShowVersions(argparse.Action):
    """Print the versions, which are looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        found = {"tfopt": __version__, **library_versions()}
        print(", ".join(f"{name} {version}" for name, version in found.items()))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tfopt",
        description="Optimise Keras 3 training on TensorFlow and measure each step.",
    )
    parser.add_argument(
        "--version",
        action=_ShowVersions,
        nargs=0,
        help="show the versions of tfopt, TensorFlow and Keras, and exit",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for add in _COMMANDS:
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
