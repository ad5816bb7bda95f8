"""Compare two series of measured blocks: a ratio, its interval, a verdict.

A block is one fresh process: the times of its windows share that process's luck (memory layout,
neighbours on the machine), so the block is the replicate, not the window. Blocks are matched in
rounds: the i-th block of both was measured in the same round, one soon after the other, so that a
machine that grows slower during the day slows both. ``benchmarks/calibration.py`` measures how
often the verdicts are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tfopt.report.footprint import CONFIDENCE, Comparison

Block = Sequence[float]

LEAST_ROUNDS = 2

_RESAMPLES = 4000
_MEDIANS_A_BLOCK = 100
# Clocks and other processes leave times no surer than so: no interval is narrower.
NARROWEST = 1e-3


def compare(reference: Sequence[Block], variant: Sequence[Block], *, seed: int = 0) -> Comparison:
    """Return the variant's time over the reference's, from blocks matched in rounds.

    The estimate is the geometric mean over the rounds of the ratio of the two blocks' medians:
    a window that somebody else's work made five times as long does not move it. The interval is
    a hierarchical bootstrap, rounds first and windows within their blocks, widened as Student's
    t widens a normal interval: few rounds, resampled, look more alike than they are.

    Args:
        reference: For each round, the window times of its block.
        variant: The same rounds, in the same order.
        seed: Of the resampling.
    """
    assert len(reference) == len(variant) >= LEAST_ROUNDS
    random = np.random.default_rng(seed)
    rounds = len(reference)
    logs = np.log([np.median(block) for block in variant])
    logs -= np.log([np.median(block) for block in reference])
    draws = resampled_medians(variant, (seed, 1)) - resampled_medians(reference, (seed, 0))
    # A round and one of its resampled medians in one draw: a place in the flattened table.
    places = random.integers(draws.size, size=(_RESAMPLES, rounds), dtype=np.uint32)
    means = draws.ravel().take(places).mean(axis=1)
    tail = (1 - CONFIDENCE) / 2
    ends = np.quantile(means, [tail, 1 - tail]) - means.mean()
    middle = logs.mean()
    low, high = middle + ends * _widening(rounds)
    low, high = min(low, middle - NARROWEST), max(high, middle + NARROWEST)
    return Comparison(math.exp(middle), math.exp(low), math.exp(high), rounds)


def resampled_medians(blocks: Sequence[Block], seed: tuple[int, int]) -> Any:
    """Return log medians of windows drawn again from each block: (rounds, _MEDIANS_A_BLOCK)."""
    drawn = [_drawn_medians(tuple(block), (*seed, place)) for place, block in enumerate(blocks)]
    return np.log(drawn)


@lru_cache(maxsize=1024)
def _drawn_medians(block: tuple[float, ...], seed: tuple[int, ...]) -> Any:
    # Each round more compares all blocks of the rounds before once again.
    windows, random = np.asarray(block), np.random.default_rng(seed)
    drawn = windows[random.integers(len(windows), size=(_MEDIANS_A_BLOCK, len(windows)))]
    return np.median(drawn, axis=1, overwrite_input=True)


def _widening(rounds: int) -> float:
    """Return the factor that makes the bootstrap's interval for few rounds hold its promise.

    Resampled means vary by (n - 1) / n of what they should, and the quantiles are the normal
    distribution's where Student's are due.
    """
    from scipy import stats

    level = 1 - (1 - CONFIDENCE) / 2
    ratio = stats.t.ppf(level, rounds - 1) / stats.norm.ppf(level)
    return float(ratio * math.sqrt(rounds / (rounds - 1)))


# What two measurements made at different times say about each other: a ratio, its interval.
#
# The blocks of one have no rounds in common with those of the other, so each side has a level and
# a spread of its own, and the interval is Student's as Welch widens it for two spreads. It holds
# what varies from block to block while one side was measured. What the machine did between the
# two measurements (another day, another neighbour, another machine of the same kind) moves all
# blocks of a side together: no interval over blocks can hold it.
#
# ``benchmarks/gate_calibration.py`` measures how often the verdicts are wrong.

_WELCH_FROM = 5  # blocks; what is measured by default
_QUARTILES_APART = 1.349  # of a normal distribution, in standard deviations


def compare_unpaired(
    reference: Sequence[Block], variant: Sequence[Block], *, seed: int = 0
) -> Comparison:
    """Return the variant's time over the reference's, from blocks that share no rounds.

    The estimate is the ratio of the geometric means of the blocks' medians. The ``rounds`` of the
    result are the blocks of the side that has fewer.

    Args:
        reference: For each block, its window times.
        variant: The same, of the other measurement; it may have more blocks or fewer.
        seed: Of the resampling.
    """
    assert min(len(reference), len(variant)) >= LEAST_ROUNDS
    sides = [_Level.of(blocks, (seed, side)) for side, blocks in enumerate((reference, variant))]
    middle = sides[1].mean - sides[0].mean
    reach = _students_t(sides) * math.sqrt(sum(side.variance for side in sides))
    reach = max(reach, NARROWEST)
    ends = (math.exp(middle - reach), math.exp(middle + reach))
    return Comparison(math.exp(middle), *ends, rounds=min(len(reference), len(variant)))


@dataclass(frozen=True)
class _Level:
    """The mean of one side, in logs, and the variance of that.

    The medians of blocks already vary by what their windows do, so resampling blocks and windows
    would count the windows twice. Windows drawn again give the least that the variance can be:
    two or three blocks may agree by chance more than their windows allow. Their spread is taken
    from quartiles, since with few windows one long one is the median of some draws.
    """

    mean: float
    variance: float
    freedom: int

    @staticmethod
    def of(blocks: Sequence[Block], seed: tuple[int, int]) -> _Level:
        """Estimate the level of these blocks."""
        medians = np.log([np.median(block) for block in blocks])
        quarter, three = np.percentile(resampled_medians(blocks, seed), [25, 75], axis=1)
        within = (((three - quarter) / _QUARTILES_APART) ** 2).mean()
        variance = max(medians.var(ddof=1), within) / len(blocks)
        return _Level(float(medians.mean()), float(variance), len(blocks) - 1)


def _students_t(sides: Sequence[_Level]) -> float:
    """Return the quantile for Welch's degrees of freedom, or for the fewer ones of the two sides.

    Welch's promise too much where one side has very few blocks and the other many: with 3 and 12
    the interval misses the truth in 7 % of the cases instead of 5 %.
    """
    from scipy import stats

    total = sum(side.variance for side in sides)
    freedom = float(min(side.freedom for side in sides))
    if total > 0 and freedom + 1 >= _WELCH_FROM:
        freedom = total**2 / sum(side.variance**2 / side.freedom for side in sides)
    return float(stats.t.ppf(1 - (1 - CONFIDENCE) / 2, freedom))
