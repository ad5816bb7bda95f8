"""How near ``tfopt.tune`` comes to the best of the whole grid, and in which part of its time.

Every combination of the settings that ``tune`` would try is measured, each in a process of its own:
all of them twice, in rounds of random order, and those within a fifth of the best three times more.
Then ``tune`` searches from nothing, several times. Its chains and the grid's winner are measured
beside each other in fresh rounds; the figure is the speed of the tuned chain as a share of the
winner's, by the predicted time of the whole training.

    python benchmarks/tune_against_grid.py tfopt.recipes.cnn_mnist:job --set data=embedded --runs 3

Chains that were found before take the place of the searches with ``--chain``, for instance those
that ``python -m tfopt.recipes.cnn_mnist`` writes:

    python benchmarks/tune_against_grid.py tfopt.recipes.cnn_mnist:job --set data=embedded \\
        --chain cnn_mnist_report/tuned.toml
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from paired import paired_ratio, save_result
from tfopt.commands.arguments import assignments
from tfopt.commands.tune import setting_values
from tfopt.job.job import Chain
from tfopt.job.recipe_file import read_recipe
from tfopt.measure.job_facts import JobFacts, LookAtJob
from tfopt.measure.process import run_worker
from tfopt.measure.search_space import AXES, Changes, narrowed, space_for
from tfopt.measure.tasks import OneBlock
from tfopt.measure.tune import predicted_training_s, tune
from tfopt.measure.tuned import SPAN

_NEAR = 1.2
_FRESH = 7


class Machine:
    """Measures chains of a job, each block in a forked worker."""

    def __init__(self, job: str, arguments: dict[str, Any]) -> None:
        self.job = {"job": job, "arguments": arguments, "forked": True}
        seen = run_worker(LookAtJob(), chain=Chain(), **self.job)
        assert seen.value is not None, seen.reason
        self.seen: JobFacts = seen.value

    def training_s(self, chain: Chain) -> float | None:
        """Return the predicted seconds of the whole training; None where it does not run."""
        result = run_worker(OneBlock(SPAN), chain=chain, **self.job)
        if result.value is None:
            return None
        return statistics.median(predicted_training_s(self.seen, result.value))

    def rounds(self, chains: list[Chain], count: int) -> dict[str, list[float]]:
        """Return the seconds of each chain, measured so often in rounds of random order."""
        different = {repr(chain): chain for chain in chains}
        found: dict[str, list[float]] = {name: [] for name in different}
        for number in range(count):
            order = list(different.values())
            random.Random(number).shuffle(order)
            for chain in order:
                seconds = self.training_s(chain)
                if seconds is not None:
                    found[repr(chain)].append(seconds)
        return {name: values for name, values in found.items() if len(values) == count}


def grid(seen: JobFacts, asked: dict[str, list[Any]]) -> list[Chain]:
    """Return every combination of the settings, each program once."""
    space = narrowed(space_for(seen), asked, exact=False)
    settings = (
        Changes(**dict(zip(AXES, values, strict=True)))
        for values in itertools.product(*(space[axis] for axis in AXES))
    )
    return list({repr(c): c for c in (setting.chain(seen) for setting in settings)}.values())


def best_of(machine: Machine, chains: list[Chain]) -> Chain:
    """Return the fastest chain, each at its best: what disturbs a process only adds."""
    coarse = {name: min(values) for name, values in machine.rounds(chains, 2).items()}
    least = min(coarse.values())
    near = [chain for chain in chains if coarse.get(repr(chain), 1e9) < _NEAR * least]
    fine = {name: min(values) for name, values in machine.rounds(near, 3).items()}
    return min(near, key=lambda chain: min(fine.get(repr(chain), 1e9), coarse[repr(chain)]))


def searched(options: argparse.Namespace) -> tuple[list[Chain], list[float]]:
    """Return the chains that ``tune`` finds, each from nothing, and the seconds of each search."""
    chains, seconds = [], []
    for number in range(options.runs):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = tune(
                options.job,
                arguments=assignments(options.set),
                budget_s=options.budget,
                space=dict(setting_values(each) for each in options.space),
                seeds=options.seeds,
                folder=Path(folder),
                verbose=False,
            )
        seconds.append(time.monotonic() - began)
        chains.append(found.chain)
        print(f"run {number + 1}, {seconds[-1]:.0f} s: {found}", flush=True)
    return chains, seconds


def command_line(options: argparse.Namespace) -> str:
    """Return the command that these options came from."""
    given = "".join(f" --chain {each}" for each in options.chain)
    searches = f" --runs {options.runs} --budget {options.budget:g} --seeds {options.seeds}"
    return (
        f"python benchmarks/tune_against_grid.py {options.job}"
        + "".join(f" --set {each}" for each in options.set)
        + "".join(f" --try {each}" for each in options.space)
        + (given or searches)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--try", action="append", default=[], dest="space", metavar="A=B,C")
    parser.add_argument("--chain", action="append", default=[], metavar="FILE")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--budget", type=float, default=180.0, metavar="SECONDS")
    parser.add_argument("--seeds", type=int, default=0)
    options = parser.parse_args()
    machine = Machine(options.job, assignments(options.set))
    space = dict(setting_values(each) for each in options.space)
    chains = grid(machine.seen, space)
    began = time.monotonic()
    winner = best_of(machine, chains)
    grid_s = time.monotonic() - began
    print(f"{len(chains)} candidates in {grid_s:.0f} s: {winner!r}", flush=True)
    found = [read_recipe(file).chain for file in options.chain]
    tuned, tuned_s = (found, []) if found else searched(options)
    fresh = machine.rounds([winner, Chain(), *tuned], _FRESH)
    best = fresh[repr(winner)]
    ratios = [
        paired_ratio(f"speed of run {n + 1} over the grid's winner", best, fresh[repr(chain)])
        for n, chain in enumerate(tuned)
    ]
    ratios.append(paired_ratio("speed of the winner over the job", fresh[repr(Chain())], best))
    save_result(
        f"tune_against_grid-{options.job.partition(':')[0].rpartition('.')[2]}"
        f"-{options.job.rpartition(':')[2]}{'-given' if found else ''}",
        command_line(options),
        ratios,
        candidates=len(chains),
        grid_s=round(grid_s),
        tune_s=[round(each) for each in tuned_s],
        winner=repr(winner),
        tuned=[repr(chain) for chain in tuned],
    )


if __name__ == "__main__":
    main()
