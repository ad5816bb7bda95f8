"""How often the verdicts of ``tfopt.bench`` are wrong, on simulated noise of a shared machine.

``python benchmarks/calibration.py`` measures the same program against itself (a verdict other
than "no difference" or "inconclusive" is false) and against one that is 5 % slower (which should
be found), each in a thousand trials with the default budget. The noise: blocks vary by 2 %,
windows by 5 %, one window in fifty takes 2 to 5 times as long, and the machine grows slower by
3 % over the first five rounds and on at that rate.
The bars: at most 5 % false verdicts; at least 90 % of the slowdowns found.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass

import numpy as np

from paired import save_figures
from tfopt.measure.rounds import Budget
from tfopt.measure.statistics import compare
from tfopt.report.footprint import Comparison

WINDOWS = 30


@dataclass(frozen=True)
class Noise:
    block: float = 0.02
    window: float = 0.05
    stretched: float = 1 / 50
    drift: float = 0.03


def trial(random: np.random.Generator, slowdown: float, noise: Noise, budget: Budget) -> Comparison:
    """One measurement from its first round to its last."""
    # Drift is that of a run of the least length, and goes on.
    drift_a_block = noise.drift / (2 * budget.at_least - 1)
    seed = int(random.integers(2**31))
    series: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    comparison = None
    while comparison is None or budget.wants_more(len(series[0]), [comparison]):
        done = 2 * len(series[0])
        for place, which in enumerate(random.permutation(2)):
            level = (1 + slowdown * which) * (1 + drift_a_block * (done + place))
            series[which].append(block(random, level, noise))
        if len(series[0]) >= budget.at_least:
            comparison = compare(*series, seed=seed)
    return comparison


def block(random: np.random.Generator, level: float, noise: Noise) -> np.ndarray:
    times = level * random.lognormal(0, noise.block) * random.lognormal(0, noise.window, WINDOWS)
    stretched = random.random(WINDOWS) < noise.stretched
    return np.where(stretched, times * random.uniform(2, 5, WINDOWS), times)


def verdicts(trials: int, slowdown: float, seed: int) -> dict[str, float | dict[str, float]]:
    """The share of each verdict, how sharp the intervals were and how often they were right."""
    random = np.random.default_rng(seed)
    done = [trial(random, slowdown, Noise(), Budget()) for _ in range(trials)]
    counted = Counter(comparison.verdict for comparison in done)
    covered = [comparison.low <= 1 + slowdown <= comparison.high for comparison in done]
    return {
        "verdicts": {verdict: number / trials for verdict, number in sorted(counted.items())},
        "intervals_that_hold_the_truth": sum(covered) / trials,
        "median_rounds": float(np.median([comparison.rounds for comparison in done])),
        "median_half_width": float(np.median([comparison.half_width for comparison in done])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    save_figures(
        "calibration",
        f"python benchmarks/calibration.py --trials {options.trials} --seed {options.seed}",
        same_program=verdicts(options.trials, 0.0, options.seed),
        five_percent_slower=verdicts(options.trials, 0.05, options.seed + 1),
        noise=vars(Noise()),
        budget=vars(Budget()),
    )


if __name__ == "__main__":
    main()
