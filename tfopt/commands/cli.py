"""The ``tfopt`` command.

Guarantees: every ``--help`` answers without loading TensorFlow; a user's mistake ends with one
message on standard error and exit code 2 (where the code is an answer there are more, see
``tfopt.commands.arguments``), Ctrl-C with one line and 130, either with a traceback only under
``--debug``; text that the terminal's encoding lacks is replaced, never a crash.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfopt import __version__
from tfopt.commands.arguments import assignments
from tfopt.commands.batch_size import add_batch_size
from tfopt.commands.bench import add_bench
from tfopt.commands.compare import add_compare
from tfopt.commands.doctor import add_doctor
from tfopt.commands.gate import add_gate
from tfopt.commands.hardware import add_hardware
from tfopt.commands.launch import add_launch, cut_command
from tfopt.commands.monitor import add_monitor
from tfopt.commands.repairs import add_repairs
from tfopt.errors import UserError
from tfopt.recipes.flags import Parser

USER_ERROR = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours, command = cut_command(given)
    # Looked for before parsing, since Ctrl-C can come as early as that.
    debug = "--debug" in ours
    try:
        options = _parser().parse_args(ours, argparse.Namespace(command=command))
        code: int = options.action(options, given)
        sys.stdout.flush()
        return code
    except UserError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        # Of the time before and after a measurement, which tells its own interruption.
        if debug:
            raise
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has seen enough, as `head` has; Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tfopt",
        description="Optimise Keras 3 training on TensorFlow and measure each step.",
    )
    parser.add_argument("--version", action="version", version=f"tfopt {__version__}")
    common = Parser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    # Flags are whole words: nobody trusts a file by a typing slip.
    commands = parser.add_subparsers(required=True, metavar="command")

    run = commands.add_parser(
        "run",
        parents=[common],
        allow_abbrev=False,
        help="measure a recipe file: the job as it is, then under each prefix of its chain",
        description="Measures the job of a recipe file as it is and under each prefix of the "
        "chain, each in a fresh process, then the chain worth keeping; writes the report, the "
        "trained model and the files that transforms made.",
    )
    run.add_argument("recipe", type=Path, help="a TOML recipe file")
    run.add_argument(
        "--job",
        help="package.module:name of your own Job, or of a function annotated as returning one; "
        "its module is imported, which runs it",
    )
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the job function; may be repeated",
    )
    run.add_argument(
        "--trust-functions",
        action="store_true",
        help="accept a chain that names functions, and let it import and call them",
    )
    run.add_argument("--output", type=Path, help="folder for the results (default: NAME_report)")
    run.add_argument(
        "--once",
        action="store_true",
        help="only train under the whole chain, in this process, without measuring",
    )
    run.set_defaults(action=_run)

    add_bench(commands, common)

    report = commands.add_parser(
        "report",
        parents=[common],
        allow_abbrev=False,
        help="show a report.json or a bench.json, or turn it into Markdown or HTML",
    )
    report.add_argument("file", type=Path, help="a report.json or a bench.json")
    report.add_argument("--format", choices=("terminal", "md", "html"), default="terminal")
    report.set_defaults(action=_report)
    add_compare(commands, common)
    add_gate(commands, common)
    add_launch(commands, common)
    add_monitor(commands, common)
    add_repairs(commands, common)
    add_doctor(commands, common)
    add_hardware(commands, common)
    add_batch_size(commands, common)
    return parser


def _run(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.files import prepare_folder
    from tfopt.job.recipe_file import read_recipe
    from tfopt.report.terminal import print_in_any_encoding

    print_in_any_encoding(sys.stdout)
    recipe = read_recipe(options.recipe, trust_functions=options.trust_functions)
    job = options.job or recipe.job
    if job is None:
        raise UserError(
            f"{options.recipe} names no job.",
            expected='job = "package.module:name" in the file, or --job package.module:name',
            fix="add --job tfopt.recipes.cnn_mnist:job to try the chain on MNIST",
        )
    # Arguments written for the file's own job do not fit another one.
    arguments = {**({} if options.job else recipe.arguments), **assignments(options.set)}
    output = prepare_folder(options.output or Path(f"{options.recipe.stem}_report"))
    if options.once:
        return _run_once(job, arguments, recipe.chain, output)
    from tfopt.recipes.recipe_main import measure_and_show

    return measure_and_show(
        title=recipe.title or options.recipe.stem,
        command=f"tfopt {shlex.join(given)}",
        job=job,
        chain=recipe.chain,
        output=output,
        arguments=arguments,
    )


def _run_once(job: str, arguments: dict[str, Any], chain: Any, output: Path) -> int:
    from tfopt.files import alone_in
    from tfopt.job.references import resolve_job
    from tfopt.run import run

    with alone_in(output):
        outcome = run(chain.apply(resolve_job(job, arguments)), verbose=2)
        for transform, effect in outcome.effects:
            print(f"{type(transform).__name__}: {effect.note}")
        for path in outcome.save(output):
            print(path)
    return 0


def _report(options: argparse.Namespace, given: list[str]) -> int:
    from rich.console import Console

    from tfopt.report.documents import as_html, as_markdown, as_terminal, read_any
    from tfopt.report.terminal import print_in_any_encoding

    report = read_any(options.file)
    if options.format == "terminal":
        print_in_any_encoding(sys.stdout)
        Console().print(as_terminal(report))
    else:
        # Both forms can name a character by its number.
        print_in_any_encoding(sys.stdout, "xmlcharrefreplace")
        print(as_markdown(report) if options.format == "md" else as_html(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
