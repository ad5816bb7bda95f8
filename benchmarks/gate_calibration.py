"""How often ``tfopt gate`` and ``tfopt compare`` are wrong about two measurements, simulated.

``python benchmarks/gate_calibration.py`` simulates pairs of reports measured at different times,
with the noise of ``calibration.py`` (blocks vary by 2 %, windows by 5 %, one window in fifty
takes 2 to 5 times as long, 3 % of drift over each measurement), for several numbers of blocks:
the same program twice (a verdict "faster" or "slower" is false), and slowdowns of 0, 3 and 5 %
against a limit of 3 % (a slowdown of exactly the limit that is called a regression is false;
so is a pass of 5 %, and a regression of nothing). Also a machine that is another one on another
day, by a factor that varies by 2 %: what the interval cannot hold, in figures.
The bar: at most 5 % false verdicts, but for the shifted machine, which has none.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

import numpy as np

from calibration import Noise, block
from paired import save_figures
from tfopt.measure.regression_gate import judge
from tfopt.measure.statistics import compare_unpaired
from tfopt.report.footprint import Comparison

LIMIT = 0.03
COUNTS = ((5, 5), (10, 10), (20, 20), (5, 20))


def measured(
    random: np.random.Generator, level: float, blocks: int, noise: Noise, shift: float
) -> list[np.ndarray]:
    """One measurement: the machine's level that day, and its drift from the first to the last."""
    level *= random.lognormal(0, shift)
    drift = np.linspace(0, noise.drift, blocks)
    return [block(random, level * (1 + share), noise) for share in drift]


def trials(
    number: int, slowdown: float, counts: tuple[int, int], seed: int, shift: float = 0.0
) -> list[Comparison]:
    """So many pairs of measurements, the second that much slower."""
    random = np.random.default_rng(seed)
    done = []
    for _ in range(number):
        base = measured(random, 1.0, counts[0], Noise(), shift)
        new = measured(random, 1 + slowdown, counts[1], Noise(), shift)
        done.append(compare_unpaired(base, new, seed=int(random.integers(2**31))))
    return done


def shares(words: Sequence[str]) -> dict[str, float]:
    """How often each word came, as a share."""
    return {word: number / len(words) for word, number in sorted(Counter(words).items())}


def calibrated(
    number: int, counts: tuple[int, int], seed: int, shift: float = 0.0
) -> dict[str, object]:
    """Verdicts on the same program, outcomes of the gate, and intervals that hold the truth."""
    found: dict[str, object] = {}
    for slowdown in (0.0, LIMIT, 0.05):
        done = trials(number, slowdown, counts, seed, shift)
        found[f"slower_by_{slowdown:g}"] = {
            "verdicts": shares([comparison.verdict for comparison in done]),
            "gate": shares([judge(comparison, LIMIT) for comparison in done]),
            "intervals_that_hold_the_truth": float(
                np.mean([each.low <= 1 + slowdown <= each.high for each in done])
            ),
            "median_half_width": float(np.median([each.half_width for each in done])),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    named = {
        f"{a}_blocks_against_{b}": calibrated(options.trials, (a, b), options.seed)
        for a, b in COUNTS
    }
    save_figures(
        "gate_calibration",
        f"python benchmarks/gate_calibration.py --trials {options.trials} --seed {options.seed}",
        limit=LIMIT,
        **named,
        shifted_by_2_percent=calibrated(options.trials, (10, 10), options.seed, shift=0.02),
        noise=vars(Noise()),
    )


if __name__ == "__main__":
    main()
