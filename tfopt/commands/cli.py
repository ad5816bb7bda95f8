"""Run the ``tfopt`` command, whose ``--help`` answers without loading TensorFlow."""

from __future__ import annotations

import argparse
import io
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfopt import __version__
from tfopt.commands.arguments import add_command, add_job, add_trust, assignments, drop_output
from tfopt.commands.batch_size import add_batch_size
from tfopt.commands.bench import add_bench
from tfopt.commands.compare import add_compare
from tfopt.commands.data import add_data
from tfopt.commands.doctor import add_doctor
from tfopt.commands.export import add_export
from tfopt.commands.gate import add_gate
from tfopt.commands.hardware import add_hardware
from tfopt.commands.launch import add_launch, cut_command
from tfopt.commands.monitor import add_monitor
from tfopt.commands.repairs import add_repairs
from tfopt.commands.tune import add_tune
from tfopt.errors import UserError
from tfopt.recipes.flags import Parser, add_debug, add_output, add_resume, exit_code_of

_RUN = """\
Trains the job of a recipe file as it is and under each prefix of the chain, whole, in
rounds and each in a fresh process, then the chain worth keeping; writes bench.json, bench.md and
bench.html, the trained model and the files that transforms made.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Example:
        >>> main(["report", "cnn_mnist_report/bench.json", "--format", "md"])
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    ours, command = cut_command(given)

    def run() -> int:
        options = _parser().parse_args(ours, argparse.Namespace(command=command))
        code: int = options.action(options, given)
        sys.stdout.flush()
        return code

    try:
        # Looked for before parsing, since Ctrl-C can come as early as that.
        return exit_code_of(run, debug="--debug" in ours)
    except BrokenPipeError:
        # Python would complain again at exit.
        drop_output()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="tfopt",
        description="Optimise Keras 3 training on TensorFlow and measure each step.",
    )
    parser.add_argument("--version", action="version", version=f"tfopt {__version__}")
    common = Parser(add_help=False)
    add_debug(common)
    commands = parser.add_subparsers(required=True, metavar="command")

    run = add_command(
        commands,
        common,
        "run",
        _run,
        help="measure a recipe file: the job as it is, then under each prefix of its chain",
        description=_RUN,
    )
    run.add_argument("recipe", type=Path, help="a TOML recipe file")
    add_job(run)
    add_trust(run)
    add_output(run, "NAME_report")
    add_resume(run)
    run.add_argument(
        "--once",
        action="store_true",
        help="only train under the whole chain, in this process, without measuring",
    )
    add_bench(commands, common)
    report = add_command(
        commands,
        common,
        "report",
        _report,
        help="show a bench.json, or turn it into Markdown or HTML",
    )
    report.add_argument("file", type=Path, help="a bench.json, or a folder with one")
    report.add_argument("--format", choices=("terminal", "md", "html"), default="terminal")
    for add in (
        add_compare,
        add_gate,
        add_launch,
        add_monitor,
        add_repairs,
        add_doctor,
        add_hardware,
        add_batch_size,
        add_tune,
        add_export,
        add_data,
    ):
        add(commands, common)
    return parser


def _run(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.files import prepare_folder
    from tfopt.job.recipe_file import read_recipe

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
    from tfopt.recipes.recipe_main import Links, measure_and_show

    return measure_and_show(
        title=recipe.title or options.recipe.stem,
        command=f"tfopt {shlex.join(given)}",
        job=job,
        links=Links(recipe.chain),
        output=output,
        arguments=arguments,
        resume=options.resume,
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

    from tfopt.report.documents import read_any
    from tfopt.report.html import as_html
    from tfopt.report.markdown import as_markdown
    from tfopt.report.terminal import as_terminal

    report = read_any(options.file)
    if options.format == "terminal":
        Console().print(as_terminal(report))
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as both forms are written to files
    print(as_markdown(report) if options.format == "md" else as_html(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
