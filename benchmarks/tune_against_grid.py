"""How near ``tfopt.tune`` comes to the best of the whole grid, within its budget.

    python benchmarks/tune_against_grid.py grid tfopt.recipes.cnn_mnist:job --set data=embedded
    python benchmarks/tune_against_grid.py tune tfopt.recipes.cnn_mnist:job --set data=embedded

``grid`` measures every combination of the settings that ``tune`` would try, by turns: all for some
rounds, then those near the best for more, then the nearest with three new processes each. Its
result is kept. ``tune`` searches from nothing, with ``--busy`` beside a neighbour, and measures
what it found beside the grid's winner: five processes of each. The figure is the speed of the tuned
chain as a share of the winner's, by the predicted time of the whole training; the bar is 0.95 (0.9
beside the neighbour).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from typing import Any

from figures import RESULTS, save_figures
from neighbour import neighbour
from tfopt.commands.tune import setting_values
from tfopt.job.recipe_file import chain_from_toml, chain_to_toml
from tfopt.job.transform import Chain
from tfopt.measure.engine import Candidate, Engine, copies, shared_rounds
from tfopt.measure.job_facts import JobFacts
from tfopt.measure.targets import Target
from tfopt.recipes.flags import assignments
from tfopt.report.display import Display
from tfopt.report.statistics import compare
from tfopt.tune.space import AXES, Changes, narrowed, space_for
from tfopt.tune.tune import tune

GROUP, NEAR, NEAREST, FINAL = 20, 1.3, 4, 5
ROUNDS, MORE_ROUNDS, FINAL_ROUNDS = 4, 6, 12


class Machine:
    """Measures chains of a job by turns, beside the job as it is."""

    def __init__(self, job: str, arguments: dict[str, Any], engine: Engine) -> None:
        self.plain = Target("plain", job, Chain(), arguments)
        self.engine = engine
        (self.reference,) = engine.admit([self.plain], look=True)
        assert self.reference.ready is not None, self.reference.out
        assert self.reference.ready.facts is not None
        self.facts: JobFacts = self.reference.ready.facts

    def variant(self, chain: Chain, name: str = "") -> Target:
        """Return a variant of the job under a chain."""
        return Target(name or repr(chain), self.plain.job, chain, self.plain.arguments)

    def values(self, chains: list[Chain], rounds: int) -> dict[Chain, float]:
        """Return the time of each as a share of the job's as it is, in groups."""
        found: dict[Chain, float] = {}
        for start in range(0, len(chains), GROUP):
            group = chains[start : start + GROUP]
            tried = self.engine.admit([self.variant(each) for each in group])
            self.engine.take_rounds([self.reference, *tried], rounds)
            for chain, candidate in zip(group, tried, strict=True):
                if candidate.alive:
                    found[chain] = self.share(candidate)
            self.engine.dismiss(tried)
        return found

    def share(self, candidate: Candidate) -> float:
        """Return the predicted time of a training as a share of the job's as it is."""
        rounds = shared_rounds([self.reference, candidate])
        examples = self.facts.training_examples
        own, plain = (c.training_s(examples, rounds) for c in (candidate, self.reference))
        return own / plain


def grid(facts: JobFacts, asked: dict[str, list[Any]]) -> list[Chain]:
    """Return every combination of the settings, each program once."""
    space = narrowed(space_for(facts), asked, exact=False)
    settings = (
        Changes(**dict(zip(AXES, values, strict=True)))
        for values in itertools.product(*(space[axis] for axis in AXES))
    )
    return list(dict.fromkeys(setting.chain(facts) for setting in settings))


def search_grid(options: argparse.Namespace, name: str) -> None:
    """Measure the whole grid and keep its best."""
    begun = time.monotonic()
    with Display() as display, Engine(display) as engine:
        machine = Machine(options.job, assignments(options.set), engine)
        chains = grid(machine.facts, dict(options.space))
        coarse = machine.values(chains, ROUNDS)
        least = min(coarse.values())
        near = [chain for chain, value in coarse.items() if value < NEAR * least]
        fine = machine.values(near, MORE_ROUNDS)
        nearest = sorted(fine, key=lambda chain: coarse[chain] * fine[chain])[:NEAREST]
        last: dict[Chain, float] = {}
        for chain in nearest:
            tried = engine.admit(copies(machine.variant(chain), 3))
            engine.take_rounds([machine.reference, *tried], MORE_ROUNDS)
            last[chain] = statistics.median(machine.share(each) for each in tried if each.alive)
            engine.dismiss(tried)
        best = min(last, key=lambda chain: last[chain])
    save_figures(
        f"grid-{name}",
        candidates=len(chains),
        grid_s=round(time.monotonic() - begun),
        winner=repr(best),
        chain=chain_to_toml(best),
        share_of_the_job=round(last[best], 4),
        nearest={repr(chain): round(value, 4) for chain, value in last.items()},
    )


def search_and_compare(options: argparse.Namespace, name: str) -> None:
    """Tune, and measure what was found beside the grid's winner."""
    kept = sorted(RESULTS.glob(f"*-grid-{name}.json"))[-1]
    winner = chain_from_toml(json.loads(kept.read_text(encoding="utf-8"))["chain"])
    begun = time.monotonic()
    with neighbour(options.busy):
        tuned = tune(
            options.job,
            arguments=assignments(options.set),
            budget_s=options.budget,
            space=dict(options.space),
            seeds=options.seeds,
        )
    took_s = time.monotonic() - begun
    print(f"{took_s:.0f} s: {tuned}", flush=True)
    with Display() as display, Engine(display) as engine:
        machine = Machine(options.job, assignments(options.set), engine)
        sides = [
            engine.admit(copies(machine.variant(chain, side), FINAL))
            for side, chain in (("winner", winner), ("tuned", tuned.chain))
        ]
        every = [machine.reference, *sides[0], *sides[1]]
        engine.take_rounds(every, FINAL_ROUNDS)
        rounds = shared_rounds(every)
        examples = machine.facts.training_examples
        times = [[each.training_s(examples, rounds) for each in side] for side in sides]
        plain_s = machine.reference.training_s(examples, rounds)
    found = compare(times[1], times[0])  # below 1 where the tuned chain is slower
    print(f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}) of the winner's speed")
    save_figures(
        f"tune_against_grid-{name}{'-busy' if options.busy else ''}",
        tune_s=round(took_s, 1),
        share=round(found.ratio, 4),
        low=round(found.low, 4),
        high=round(found.high, 4),
        speed_of_the_winner=round(plain_s / statistics.median(times[0]), 3),
        winner=repr(winner),
        tuned=repr(tuned.chain),
        notes=list(tuned.notes),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("grid", "tune"))
    parser.add_argument("job")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--try", action="append", default=[], dest="space", type=setting_values, metavar="A=B,C"
    )
    parser.add_argument("--budget", type=float, default=90.0, metavar="SECONDS")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="search beside a neighbour")
    options = parser.parse_args()
    module, _, function = options.job.partition(":")
    name = function if function != "job" else module.rpartition(".")[2]
    (search_grid if options.what == "grid" else search_and_compare)(options, name)


if __name__ == "__main__":
    main()
