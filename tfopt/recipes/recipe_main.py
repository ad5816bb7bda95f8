"""Run a recipe from its command line: flags, live progress, a table, the report files.

``--help`` and wrong flags are answered without loading TensorFlow; Ctrl-C leaves a valid report of
what was measured.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.files import prepare_folder
from tfopt.job.job import Chain
from tfopt.job.recipe_file import read_recipe
from tfopt.job.roster import transform_name
from tfopt.measure.experiment import Experiment
from tfopt.measure.rounds import Budget
from tfopt.measure.targets import Target
from tfopt.measure.tuned import LEAST_S, SPAN, Tuned
from tfopt.monitor.nvml import gpu_memories
from tfopt.recipes.bench_display import RECIPE, bench_and_show, tune_and_show
from tfopt.recipes.flags import (
    INTERRUPTED,
    Parser,
    add_chain,
    add_debug,
    add_output,
    add_resume,
    add_set,
    add_trust,
    assignments,
    exit_code_of,
)

_DATA_SOURCES = ("auto", "tfds", "embedded", "synthetic")
_OF_THE_JOB = ("data", "batch_size", "epochs", "steps", "seed")
_ROUNDS = 3
_TUNE_S = 60.0
# Before its first step a process opens the GPU and compiles: a trial took 13 s on an H200.
_TUNE_ON_GPU_S = 300.0


@dataclass(frozen=True)
class Links:
    """A chain to measure link by link; its first ``tuned_parts`` transforms are one link."""

    chain: Chain
    tuned_parts: int = 0
    remarks: tuple[str, ...] = ()


def measure_and_show(
    *,
    title: str,
    command: str,
    job: str,
    links: Links,
    output: Path,
    arguments: Mapping[str, Any],
    seed: int = 0,
    resume: bool = False,
) -> int:
    """Train the job as it is and under each prefix, whole and in rounds; leave report and files.

    The steps are measured quickly beside it, since the trainings are what counts. ``seed`` is that
    of the first round of trainings.
    """
    experiment = Experiment(
        title=title,
        command=command,
        kind="prefixes" if links.chain.parts else "single",
        targets=(Target(title, job, links.chain, arguments),),
        span=SPAN,
        budget=Budget(_ROUNDS, _ROUNDS),
        quick=True,
        seed=seed,
        studies=0,
        seeds=_ROUNDS,
        whole=True,
        tuned_parts=links.tuned_parts,
        remarks=links.remarks,
    )
    return bench_and_show(experiment, output, resume=resume)


@dataclass(frozen=True)
class _Recipe:
    """The job of a recipe module and its chain."""

    job: str
    chain: Chain
    title: str

    def run(self, options: argparse.Namespace) -> int:
        """Measure what the flags ask for; return the exit code."""
        flags = {name: getattr(options, name) for name in _OF_THE_JOB}
        arguments = {name: value for name, value in flags.items() if value is not None}
        arguments |= assignments(options.set)
        links = self._fixed(options)
        output = prepare_folder(options.output)
        if links is None:
            links = self._earlier(output) if options.resume else None
        if links is None:
            budget_s = _search_s() if options.tune is None else options.tune
            # Not confirmed: the measurement that follows does that, with more seeds.
            tuned = tune_and_show(
                Target(self.title, self.job, Chain(), arguments),
                output,
                reports=output / "search",
                budget_s=budget_s,
                seeds=1,
                confirm=False,
            )
            if tuned.interrupted:
                (output / RECIPE).unlink(missing_ok=True)
                print(
                    "Interrupted in the search: nothing was measured beside the plain job. "
                    "The same command goes on from what was tried.",
                    file=sys.stderr,
                )
                return INTERRUPTED
            print(tuned.chain)
            links = Links(*self._with_small(tuned.chain), _remarks(tuned))
        return measure_and_show(
            title=self.title,
            command=f"python -m {self.job.partition(':')[0]} {shlex.join(sys.argv[1:])}".strip(),
            job=self.job,
            links=links,
            output=output,
            arguments=arguments,
            seed=options.seed,
            resume=options.resume,
        )

    def _fixed(self, options: argparse.Namespace) -> Links | None:
        """Return the links that the flags name; None where the chain is to be found."""
        selected = bool(options.transforms or options.skip)
        if (options.chain is not None) + selected + bool(options.tune) > 1:
            raise UserError(
                "These flags name more than one chain.",
                expected="--tune, --chain, or --transforms and --skip",
                received=shlex.join(sys.argv[1:]),
            )
        if options.chain is not None:
            return Links(read_recipe(options.chain, trust_functions=options.trust_functions).chain)
        if selected or options.tune == 0:
            return Links(_selected(self.chain, options.transforms or ["all"], options.skip))
        return None

    def _earlier(self, output: Path) -> Links | None:
        """Return what the search of the measurement to resume has found, if it had an end."""
        file = output / RECIPE
        return Links(*self._with_small(read_recipe(file).chain)) if file.exists() else None

    def _with_small(self, found: Chain) -> tuple[Chain, int]:
        """Return what was found, with what makes the model small behind it."""
        small = tuple(part for part in self.chain.parts if part.aim == "size")
        return Chain((*found.parts, *small)), len(found.parts)


def _search_s() -> float:
    """Return the seconds that a search takes where nothing else was asked for."""
    gpus = gpu_memories()
    return _TUNE_ON_GPU_S if gpus and not isinstance(gpus, str) else _TUNE_S


def _remarks(tuned: Tuned) -> tuple[str, ...]:
    """Return what the report says about the search."""
    remarks = [note[0].upper() + note[1:] + "." for note in tuned.notes]
    if tuned.slower:
        slower = ", ".join(tuned.slower)
        remarks.append(f"Left behind in the search, at its speed beside the best: {slower}.")
    if not tuned.chain.parts:
        remarks.append("Nothing that was tried was shown to train faster than the job as it is.")
    return tuple(remarks)


def recipe_main(job: str, chain: Chain, *, title: str, data: str = "") -> int:
    """Parse the flags, find the chain, measure it link by link, and return the exit code.

    ``data`` says what else than a name of ``--data`` the job takes.
    """
    options = _parser(title, chain, data).parse_args()
    return exit_code_of(lambda: _Recipe(job, chain, title).run(options), debug=options.debug)


def _parser(title: str, chain: Chain, data: str) -> Parser:
    names = ", ".join(_names_in(chain))
    parser = Parser(
        description=f"Find what trains {title} fastest on this machine, then measure it, and what "
        "makes the model small, beside the job as it is."
    )
    add = parser.add_argument
    sources = ", ".join(_DATA_SOURCES)
    add(
        "--data",
        choices=None if data else _DATA_SOURCES,
        default="auto",
        metavar="SOURCE" if data else None,
        help=f"where the examples come from: {sources}{f'; or {data}' if data else ''}",
    )
    add("--batch-size", type=_count, default=32, metavar="N", help="batch of the baseline")
    # As it was spelled in version 0.1.0.
    add("--batch_size", type=_count, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--epochs", type=_count, default=3, metavar="N", help="epochs of every row")
    add("--steps", type=_count, metavar="N", help="steps an epoch (default: the whole data set)")
    add("--seed", type=int, default=0, help="seed of weights and shuffling in the first round")
    add_set(parser)
    add(
        "--tune",
        type=_budget,
        metavar="SECONDS",
        help="for the search of the fastest chain; 0: none, the recipe's own chain is taken "
        f"(default: {_TUNE_S:g}; {_TUNE_ON_GPU_S:g} on a GPU, where a trial takes longer)",
    )
    add_chain(parser)
    add_trust(parser)
    add(
        "--transforms",
        type=_names,
        default=[],
        metavar="A,B",
        help=f"without a search, these of the recipe's own chain: {names}; or all",
    )
    add(
        "--skip",
        type=_names,
        default=[],
        metavar="A,B",
        help="without a search, its own chain without these",
    )
    add_output(parser, f"{title}_report", Path(f"{title}_report"))
    add_resume(parser)
    add_debug(parser)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _budget(text: str) -> float:
    value = float(text)
    if value != 0 and not value >= LEAST_S:
        raise argparse.ArgumentTypeError(f"{text} is neither 0 nor at least {LEAST_S:g} s")
    return value


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _names_in(chain: Chain) -> list[str]:
    return [transform_name(part) for part in chain.parts]


def _selected(chain: Chain, wanted: Sequence[str], skipped: Sequence[str]) -> Chain:
    """Return the chain without what the flags leave out; an unknown name is an error."""
    names = _names_in(chain)
    for name in (*wanted, *skipped):
        if name not in names and name != "all":
            raise UserError(
                f"This recipe has no transform {name!r}.",
                expected=f"all, or some of {', '.join(names)}",
                received=name,
            )
    keep = set(names) if "all" in wanted else set(wanted)
    keep -= set(skipped)
    return Chain(tuple(part for part in chain.parts if transform_name(part) in keep))
