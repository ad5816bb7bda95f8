"""Run a recipe from its command line: flags, live progress, a table, the report files.

``--help`` and wrong flags are answered without loading TensorFlow; Ctrl-C leaves a valid report of
what was measured.
"""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tfopt.data.mnist import SOURCES
from tfopt.errors import UserError
from tfopt.export.quantize import Quantize
from tfopt.job.recipe_file import read_recipe
from tfopt.job.roster import transform_name
from tfopt.job.transform import Chain
from tfopt.measure.bench_plan import LEAST_S, BenchPlan
from tfopt.measure.targets import Target
from tfopt.monitor.nvml import gpu_memories
from tfopt.recipes.bench_display import RECIPE, bench_and_show, tune_and_show
from tfopt.recipes.flags import (
    INTERRUPTED,
    Parser,
    add_flags,
    add_output,
    assignments,
    count,
    duration,
    exit_code_of,
    names,
)
from tfopt.report.bench_figures import is_faster
from tfopt.report.display import Display
from tfopt.tune.search import Search

_POSITIVE = functools.partial(count, minimum=1)
_OF_THE_JOB = ("data", "batch_size", "epochs", "steps", "seed")
_SMALL = Quantize(precision="int8")
_SEARCH_S, _MEASURE_S = 55.0, 80.0
# Before its first step a process opens the GPU and compiles.
_SEARCH_GPU_S, _MEASURE_GPU_S = 90.0, 90.0
_SEARCH_SEEDS = 1
_NONE_FASTER = "Nothing that was tried was shown to train faster than the job as it is."


def _run(job: str, chain: Chain, title: str, options: argparse.Namespace) -> int:
    """Measure the named chain, or search for one first; return the exit code."""
    flags = {name: getattr(options, name) for name in _OF_THE_JOB}
    arguments = {name: value for name, value in flags.items() if value is not None}
    target = Target(title, job, Chain(), arguments | assignments(options.set))
    search_s, measure_s = (
        (_SEARCH_GPU_S, _MEASURE_GPU_S) if gpu_memories() else (_SEARCH_S, _MEASURE_S)
    )
    plan = BenchPlan(
        title=title,
        command=f"python -m {job.partition(':')[0]} {shlex.join(sys.argv[1:])}".strip(),
        kind="prefixes",
        targets=(target,),
        budget_s=measure_s,
        quick=True,
        whole=True,
        seed=options.seed,
    )
    output, named = options.output.expanduser(), _named_chain(chain, options)
    if named is None:
        return _search_and_measure(plan, target, options.budget or search_s, output)
    plan = replace(
        plan,
        kind="prefixes" if named.parts else "single",
        targets=(replace(target, chain=named),),
        budget_s=search_s + measure_s,  # with the time of the search
    )
    return bench_and_show(plan, output, Display(budget_s=plan.budget_s))[1]


def _search_and_measure(plan: BenchPlan, target: Target, search_s: float, output: Path) -> int:
    """Find the fastest chain and measure it; keep its file if it is shown to be faster."""
    display = Display(budget_s=search_s + plan.budget_s)
    # The measurement that follows trains with more seeds, and is the final one.
    search = Search(target, search_s, seeds=_SEARCH_SEEDS, final=False)
    tuned = tune_and_show(search, output, display, reports=output / "search")
    if tuned.interrupted:
        print(f"{tuned}\nInterrupted in the search.", file=sys.stderr)
        return INTERRUPTED
    print(tuned.chain)
    found = tuned.chain.parts
    plan = replace(
        plan,
        targets=(replace(target, chain=Chain((*found, _SMALL))),),
        tuned_parts=len(found),
        remarks=tuned.notes if found else (*tuned.notes, _NONE_FASTER),
    )
    report, code = bench_and_show(plan, output, display)
    unproven = found and not (report and is_faster(report.variants[1]))
    if unproven and (output / RECIPE).exists():
        (output / RECIPE).unlink()
        print(f"{RECIPE} was removed: its chain was not shown to train faster.")
    return code


def _named_chain(chain: Chain, options: argparse.Namespace) -> Chain | None:
    """Return the chain that the flags name; None where it is to be found."""
    selected = bool(options.transforms or options.skip)
    if (options.chain is not None) + selected + bool(options.budget) > 1:
        raise UserError(
            "These flags name more than one chain.",
            expected="--budget, --chain, or --transforms and --skip",
            received=shlex.join(sys.argv[1:]),
        )
    if options.chain is not None:
        return read_recipe(options.chain, trust_functions=options.trust_functions).chain
    if selected or options.budget == 0:
        return _selected(chain, options.transforms or ["all"], options.skip)
    return None


def recipe_main(
    job: str, chain: Chain, *, title: str, sources: Sequence[str] = SOURCES, data: str = ""
) -> int:
    """Parse the flags, find the chain, measure it link by link, and return the exit code.

    ``sources`` are the names that ``--data`` takes; ``data`` says what else.
    """
    parser = _parser(title, chain, sources, data)
    options = parser.parse_args()
    return exit_code_of(
        lambda: _run(job, chain, title, options), debug=options.debug, parser=parser
    )


def _parser(title: str, chain: Chain, sources: Sequence[str], data: str) -> Parser:
    own = ", ".join(transform_name(part) for part in chain.parts)
    parser = Parser(
        description=f"Find what trains {title} fastest on this machine, then measure it, and what "
        "makes the model small, beside the job as it is."
    )
    add = parser.add_argument
    add(
        "--data",
        choices=None if data else sources,
        default="auto",
        metavar="SOURCE" if data else None,
        help=f"where the examples come from: {', '.join(sources)}{f'; or {data}' if data else ''}",
    )
    add("--batch-size", type=_POSITIVE, default=32, metavar="N", help="batch of the baseline")
    add("--epochs", type=_POSITIVE, default=3, metavar="N", help="epochs of every row")
    add("--steps", type=_POSITIVE, metavar="N", help="steps an epoch (default: the whole data set)")
    add("--seed", type=int, default=0, help="seed of weights and shuffling in the first round")
    add_flags(parser, "--set")
    add(
        "--budget",
        type=_budget,
        metavar="TIME",
        help="for the search of the fastest chain: 90s, 5m; 0: none, the recipe's own chain is "
        f"taken (default: {_SEARCH_S:g}s; {_SEARCH_GPU_S:g}s on a GPU)",
    )
    add_flags(parser, "--chain", "--trust-functions")
    add(
        "--transforms",
        type=names,
        default=[],
        metavar="A,B",
        help=f"without a search, these of the recipe's own chain: {own}; or all",
    )
    add(
        "--skip",
        type=names,
        default=[],
        metavar="A,B",
        help="without a search, its own chain without these",
    )
    add_output(parser, f"{title}_report", Path(f"{title}_report"))
    add_flags(parser, "--debug")
    return parser


def _budget(text: str) -> float:
    value = duration(text)
    if value != 0 and not value >= LEAST_S:
        raise argparse.ArgumentTypeError(
            f"{text} is neither 0 nor at least {LEAST_S:g} s; 5m is five minutes"
        )
    return value


def _selected(chain: Chain, wanted: Sequence[str], skipped: Sequence[str]) -> Chain:
    """Return the chain without what the flags leave out; an unknown name is an error."""
    own = {transform_name(part): part for part in chain.parts}
    if unknown := ({*wanted} - {*own, "all"}) | ({*skipped} - {*own}):
        raise UserError(
            "--transforms and --skip take names of the recipe's own transforms.",
            expected=f"some of {', '.join(own)}; or --transforms all",
            received=", ".join(sorted(unknown)),
        )
    keep = {*(own if "all" in wanted else wanted)} - {*skipped}
    return Chain(tuple(part for name, part in own.items() if name in keep))
