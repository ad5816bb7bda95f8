"""Run a recipe from its command line: flags, live progress, a table, the report files.

``--help`` and wrong flags are answered without loading TensorFlow; Ctrl-C leaves a valid report of
what was measured.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.files import prepare_folder
from tfopt.job.job import Chain
from tfopt.job.roster import transform_name
from tfopt.measure.blocks import QUICK
from tfopt.measure.experiment import Experiment
from tfopt.measure.rounds import Budget
from tfopt.measure.targets import Target
from tfopt.recipes.bench_display import bench_and_show
from tfopt.recipes.flags import Parser, add_debug, add_output, add_resume, exit_code_of

_DATA_SOURCES = ("auto", "tfds", "embedded", "synthetic")
_ROUNDS = 3


def measure_and_show(
    *,
    title: str,
    command: str,
    job: str,
    chain: Chain,
    output: Path,
    arguments: Mapping[str, Any],
    seed: int = 0,
    resume: bool = False,
) -> int:
    """Train the job under each prefix of the chain, whole and in rounds; leave report and files.

    The steps are measured quickly beside it, since the trainings are what counts. ``seed`` is that
    of the first round of trainings.
    """
    experiment = Experiment(
        title=title,
        command=command,
        kind="prefixes" if chain.parts else "single",
        targets=(Target(title, job, chain, arguments),),
        span=QUICK,
        budget=Budget(_ROUNDS, _ROUNDS),
        quick=True,
        seed=seed,
        studies=0,
        seeds=_ROUNDS,
        whole=True,
    )
    return bench_and_show(experiment, output, resume=resume, live=True)


def recipe_main(job: str, chain: Chain, *, title: str) -> int:
    """Parse the flags, measure the job along the chain, show it, and return the exit code."""
    options = _parser(title, chain).parse_args()
    return exit_code_of(
        lambda: measure_and_show(
            title=title,
            command=f"python -m {job.partition(':')[0]} {shlex.join(sys.argv[1:])}".strip(),
            job=job,
            chain=_selected(chain, options.transforms, options.skip),
            output=prepare_folder(options.output),
            arguments={
                name: getattr(options, name)
                for name in ("data", "batch_size", "epochs", "steps", "seed")
            },
            seed=options.seed,
            resume=options.resume,
        ),
        debug=options.debug,
    )


def _parser(title: str, chain: Chain) -> Parser:
    names = ", ".join(_names_in(chain))
    parser = Parser(description=f"Measure {title} as it is and under each prefix of its chain.")
    add = parser.add_argument
    add("--data", choices=_DATA_SOURCES, default="auto", help="where the examples come from")
    add("--batch-size", type=_count, default=32, metavar="N", help="batch of the baseline")
    # As it was spelled in version 0.1.0.
    add("--batch_size", type=_count, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--epochs", type=_count, default=3, metavar="N", help="epochs of every row")
    add("--steps", type=_count, metavar="N", help="steps an epoch (default: the whole data set)")
    add("--seed", type=int, default=0, help="seed of weights and shuffling in the first round")
    add(
        "--transforms",
        type=_names,
        default=["all"],
        metavar="A,B",
        help=f"which to apply, of: {names} (default: all)",
    )
    add("--skip", type=_names, default=[], metavar="A,B", help="transforms to leave out")
    add_output(parser, f"{title}_report", Path(f"{title}_report"))
    add_resume(parser)
    add_debug(parser)
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
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
