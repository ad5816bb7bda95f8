"""Measure a job, or a chain link by link, and say what the figures allow: ``tfopt bench``."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfopt.commands import arguments
from tfopt.errors import UserError
from tfopt.recipes.flags import add_output

_DESCRIPTION = """\
Measures TARGET: a recipe file (.toml), a recipe module (tfopt.recipes.cnn_mnist), or a job of
yours (package.module:job). A chain is measured prefix by prefix against the job as it is. Every
block of steps runs in a fresh process, the variants take turns in random order, and rounds are
added until the 95 % intervals are narrow enough. Writes bench.json, bench.md and bench.html.
With --input it says what the training's input waits for, and which change to it brings how much."""


def add_bench(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        common,
        "bench",
        _bench,
        help="measure steps with intervals and verdicts: a chain link by link, or two jobs",
        description=_DESCRIPTION,
    )
    parser.add_argument("target", nargs="?", help="what to measure")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--ablate",
        action="store_true",
        help="the whole chain against the chain without each of its links",
    )
    what.add_argument(
        "--only",
        nargs=2,
        metavar=("A", "B"),
        help="two targets against each other, each under its whole chain",
    )
    what.add_argument(
        "--input",
        action="store_true",
        help="find what binds the input of one job: its stages drained, and changes to it tried",
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="with --input: measure what brings most beside the job as it is, and leave its chain",
    )
    arguments.add_chain(parser)
    arguments.add_set(parser)
    parser.add_argument(
        "--quick", action="store_true", help="fewer and shorter windows; the report says so"
    )
    parser.add_argument(
        "--rounds",
        metavar="LEAST[:MOST]",
        help="blocks of each variant (default: 5:20, with --quick 5:8)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=3,
        metavar="N",
        help="rounds of whole trainings of what trains other weights, for its accuracy; 0: none "
        "(default: 3)",
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="train every variant whole in these rounds, for its time too; the files of the chain "
        "to keep are left with the report",
    )
    arguments.add_tolerance(parser)
    parser.add_argument(
        "--studies",
        type=int,
        metavar="N",
        help="processes that look where each variant's time goes; 0: none (default: 2, "
        "with --quick 1)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the order of the blocks, and of the first training"
    )
    arguments.add_resume(parser)
    parser.add_argument(
        "--force", action="store_true", help="compare two jobs although their data differ"
    )
    arguments.add_trust(parser)
    add_output(parser, "NAME_bench")


def _bench(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.files import prepare_folder
    from tfopt.recipes.bench_display import bench_and_show

    kind, targets = _targets(options)
    _require_numbers(options)
    if options.fix and not options.input:
        raise UserError("--fix is for --input.", received="--fix alone", fix="--input --fix")
    if options.input:
        output = prepare_folder(options.output or Path(f"{_file_name(targets[0].name)}_input"))
        return _diagnose_input(targets[0], options, given, output)
    studies = (1 if options.quick else 2) if options.studies is None else options.studies
    experiment = _experiment(kind, targets, options, given, studies)
    output = prepare_folder(options.output or Path(f"{_file_name(targets[0].name)}_bench"))
    return bench_and_show(experiment, output, resume=options.resume)


def _experiment(
    kind: Any, targets: tuple[Any, ...], options: argparse.Namespace, given: list[str], studies: int
) -> Any:
    from tfopt.measure.blocks import QUICK, Span
    from tfopt.measure.experiment import Experiment

    return Experiment(
        title=" against ".join(target.name for target in targets),
        command=f"tfopt {shlex.join(given)}",
        kind=kind,
        targets=targets,
        span=QUICK if options.quick else Span(),
        budget=_budget(options),
        quick=options.quick,
        seed=options.seed,
        studies=studies,
        seeds=options.seeds,
        tolerance_points=options.tolerance,
        any_data=options.force,
        whole=options.whole,
    )


def _diagnose_input(
    target: Any, options: argparse.Namespace, given: list[str], output: Path
) -> int:
    """Print what binds the input, leave input.json, and measure the remedy where that is asked."""
    from tfopt.files import write_atomically
    from tfopt.job.recipe_file import RecipeFile, write_recipe
    from tfopt.measure.input_doctor import diagnose_input
    from tfopt.recipes.bench_display import bench_and_show

    found = diagnose_input(target)
    print(found, flush=True)
    write_atomically(output / "input.json", json.dumps(found.to_dict(), indent=1) + "\n")
    if not (options.fix and found.remedy):
        return 0
    fixed = RecipeFile(job=target.job, arguments=target.arguments, chain=found.chain)
    print(f"Its chain: {write_recipe(fixed, output / 'fixed.toml')}", flush=True)
    repaired = replace(target, name=f"{target.name} fixed", chain=found.chain)
    experiment = _experiment("pair", (target, repaired), options, given, studies=0)
    return bench_and_show(experiment, output, resume=options.resume)


def _require_numbers(options: argparse.Namespace) -> None:
    for name, count in (("--seeds", options.seeds), ("--studies", options.studies or 0)):
        if count < 0:
            raise UserError(f"{name} is not a count.", expected="0 or more", received=str(count))
    if options.whole and not options.seeds:
        raise UserError(
            "--whole trains in rounds, and there are none.",
            expected="--seeds of at least 1",
            received="--seeds 0",
        )
    if not 0 <= options.tolerance <= 100:
        raise UserError(
            "--tolerance is no number of points.",
            expected="0 to 100, such as 0.5",
            received=str(options.tolerance),
        )


def _targets(options: argparse.Namespace) -> tuple[Any, tuple[Any, ...]]:
    from tfopt.job.recipe_file import read_recipe
    from tfopt.measure.targets import resolve_target

    values, trust = arguments.assignments(options.set), options.trust_functions
    named = [*([options.target] if options.target else []), *(options.only or ())]
    if not named or (options.target and options.only):
        raise UserError(
            "One thing is measured at a time.",
            expected="tfopt bench TARGET, or tfopt bench --only A B",
            received="no target" if not named else f"{options.target} and --only",
        )
    targets = [resolve_target(each, values, trust_functions=trust) for each in named]
    if options.chain is not None:
        if options.only:
            raise UserError(
                "--chain is for one job.", received="--only", fix="name two recipe files instead"
            )
        recipe = read_recipe(options.chain, trust_functions=trust)
        targets = [replace(targets[0], chain=recipe.chain)]
    if options.only:
        return "pair", _apart(targets)
    if options.ablate and len(targets[0].chain.parts) < 2:
        raise UserError(
            "--ablate leaves links out of a chain.",
            expected="a target with a chain of at least two transforms",
            received=f"{len(targets[0].chain.parts)} transforms",
            fix="name a recipe file or a recipe module, or give --chain FILE",
        )
    if options.ablate:
        return "ablation", tuple(targets)
    return ("prefixes" if targets[0].chain.parts else "single"), tuple(targets)


def _apart(targets: list[Any]) -> tuple[Any, ...]:
    """Number two targets of one name, such as a job against itself."""
    if targets[0].name != targets[1].name:
        return tuple(targets)
    return tuple(replace(each, name=f"{each.name} ({n})") for n, each in enumerate(targets, 1))


def _budget(options: argparse.Namespace) -> Any:
    from tfopt.measure.rounds import Budget

    if options.rounds is None:
        return Budget(5, 8) if options.quick else Budget()
    least, _, most = options.rounds.partition(":")
    try:
        return Budget(int(least), int(most or least))
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            "--rounds takes one or two numbers.", expected="5 or 5:20", received=options.rounds
        ) from None


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)
