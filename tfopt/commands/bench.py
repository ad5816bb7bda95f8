"""Measure a job, or a chain link by link, and say what the figures allow: ``tfopt bench``."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.commands import arguments
from tfopt.errors import UserError
from tfopt.files import prepare_folder
from tfopt.recipes.flags import add_flags, add_output

if TYPE_CHECKING:
    from tfopt.measure.targets import Target

_DESCRIPTION = """\
Measures JOB as it is, then with the first transform of the chain, with the first two, and so on:
step time, throughput and memory, with 95 % intervals. Processes of all variants take turns of a
tenth of a second in random order. Writes bench.json, bench.md and bench.html. With --input it
finds what the training's input waits for, and what each change to it brings.
"""
_EXAMPLES = """\
examples:
  tfopt bench my_package.train:job --chain recipes/gpu_single.toml
  tfopt bench my_package.train:job --input
  tfopt bench --only my_package.train:base my_package.train:new
"""


def add_bench(commands: Any) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        "bench",
        _bench,
        help="measure what each transform of a chain brings, or compare two jobs",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    arguments.add_job(parser, nargs="?", chain=True)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--ablate",
        action="store_true",
        help="compare the chain with the chain without each of its transforms",
    )
    what.add_argument(
        "--only",
        nargs=2,
        metavar=("A", "B"),
        help="compare two jobs, each under its whole chain, in the place of JOB",
    )
    what.add_argument(
        "--input",
        action="store_true",
        help="find what slows the input of one job: time its stages, and try changes to it",
    )
    time = parser.add_mutually_exclusive_group()
    arguments.add_budget(time, "how long it may take", "5m", None)
    time.add_argument(
        "--quick", action="store_true", help="a budget of 2 minutes; the report says so"
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="train every variant to the end, and compare accuracy and whole trainings; leave "
        "the files of the chain to keep with the report",
    )
    arguments.add_seeds(parser, "whole trainings of a variant, where its accuracy is measured")
    arguments.add_max_drop(parser)
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the order of turns, and of the first training (default: 0)",
    )
    add_flags(parser, "--json")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FOLDER",
        help="write traces of some steps for TensorBoard: of the job, and of the chain to keep",
    )
    add_output(parser, "NAME_bench")


def _bench(options: argparse.Namespace) -> int:
    if options.whole and not options.seeds:
        raise UserError("--whole needs at least one training.", expected="--seeds 1 or more")
    if options.input and options.trace:
        raise UserError("--trace cannot be combined with --input.", fix="leave out --input")
    with arguments.json_alone(options):
        kind, targets = _targets(options)
        ending = "input" if options.input else "bench"
        output = arguments.output_folder(options, targets[0], ending)
        if options.input:
            document, code = _diagnose_input(targets[0], options, output), 0
        else:
            document, code = _measure(kind, targets, options, output)
    if options.json and document:
        print(document.rstrip())
    return code


def _measure(
    kind: Any, targets: tuple[Target, ...], options: argparse.Namespace, output: Path
) -> tuple[str, int]:
    """Measure, and return the report as JSON, empty where nothing was, and the exit code."""
    from tfopt.measure.bench_plan import BUDGET_S, QUICK_S, BenchPlan
    from tfopt.recipes.bench_display import bench_and_show
    from tfopt.report.display import Display

    usual_s = QUICK_S if options.quick else BUDGET_S
    plan = BenchPlan(
        title=" against ".join(target.name for target in targets),
        command=f"tfopt {shlex.join(options.given)}",
        kind=kind,
        targets=targets,
        budget_s=usual_s if options.budget is None else options.budget,
        quick=options.quick,
        whole=options.whole,
        seeds=options.seeds,
        max_drop=options.max_drop,
        seed=options.seed,
        trace=prepare_folder(options.trace) if options.trace else None,
    )
    display = Display(verbose=not options.json, budget_s=plan.budget_s)
    report, code = bench_and_show(plan, output, display)
    return report.to_json() if report is not None else "", code


def _diagnose_input(target: Target, options: argparse.Namespace, output: Path) -> str:
    """Print what binds the input, and write input.json; return its content."""
    from tfopt.files import alone_in, write_atomically
    from tfopt.measure.input_doctor import diagnose_input
    from tfopt.report.display import Display

    with alone_in(output), Display(verbose=not options.json) as display:
        found = diagnose_input(target, display)
        document = json.dumps(found.to_dict(), indent=1) + "\n"
        write_atomically(output / "input.json", document)
    print(found, flush=True)
    return document


def _targets(options: argparse.Namespace) -> tuple[str, tuple[Target, ...]]:
    if bool(options.job) == bool(options.only):
        raise UserError(
            "tfopt bench takes one JOB, or two after --only.",
            expected="tfopt bench JOB, or tfopt bench --only A B",
            received=f"{options.job} and --only" if options.job else "no job",
        )
    if options.only and options.chain is not None:
        raise UserError(
            "--chain cannot be combined with --only.", fix="name two recipe files instead of jobs"
        )
    if options.only:
        first, second = (arguments.target_of(options, job) for job in options.only)
        if first.name == second.name:  # such as a job against itself
            first, second = (
                replace(t, name=f"{t.name} ({n})") for n, t in ((1, first), (2, second))
            )
        return "pair", (first, second)
    target = arguments.target_of(options)
    links = len(target.chain.parts)
    return "ablation" if options.ablate else "prefixes" if links else "single", (target,)
