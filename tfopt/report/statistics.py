"""Compare two series of times: a ratio, its 95 % interval.

Every comparison is of logarithms, by Student's t, so that ratios are symmetric and few values make
wide intervals. ``benchmarks/same_program.py`` measures how often the verdicts are wrong.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tfopt.report.strict import AboveZero, Count

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]

# Two variants closer than this are the same for anyone who has to choose.
SAME_WITHIN = 0.02


@dataclass(frozen=True)
class Comparison:
    """The time of a variant as a share of the reference's, and what may be said of it.

    ``processes``: how many a side the interval is made of.
    """

    ratio: AboveZero
    low: AboveZero
    high: AboveZero
    processes: Count

    def __post_init__(self) -> None:
        assert 0 < self.low <= self.high < math.inf, "an interval above 0, low to high"

    @property
    def verdict(self) -> Verdict:
        """Return what the interval allows to say; "inconclusive" where it allows nothing."""
        if self.low >= 1 - SAME_WITHIN and self.high <= 1 + SAME_WITHIN:
            return "no difference"
        if self.high < 1:
            return "faster"
        return "slower" if self.low > 1 else "inconclusive"


LEAST = 2
"""The fewest values a side that have an interval."""
# Clocks and other processes leave times no surer than so: no interval is narrower.
NARROWEST = 1e-3
_WELCH_FROM = 5  # processes a side


def compare(reference: Sequence[float], variant: Sequence[float]) -> Comparison:
    """Return the variant's time over the reference's, from one time a process of each.

    Processes of one program differ by some percent, by their memory's layout for instance, so the
    process is the replicate. Both sides share one scatter, which is pooled: with k processes a
    side, the interval has 2k - 2 degrees of freedom.

    Example:
        >>> compare([2.0, 2.1, 1.9], [1.0, 1.05, 0.95]).verdict
        'faster'
    """
    return compare_crossed([[value] for value in reference], [[value] for value in variant])


def compare_crossed(
    reference: Sequence[Sequence[float]],
    variant: Sequence[Sequence[float]],
    factors: Sequence[Sequence[float]] = (),
) -> Comparison:
    """Return the variant's time over the reference's, each process with each of several seeds.

    ``reference[process][seed]``: the scatter of the processes, as in :func:`compare`, and that of
    the seeds, which both sides share in pairs, are both in the interval. So is that of ``factors``:
    for each side several readings of one, whose mean is in all of its times.
    """
    sides = [[[math.log(value) for value in row] for row in side] for side in (reference, variant)]
    assert min(map(len, sides)) >= LEAST
    means = [[statistics.fmean(row) for row in side] for side in sides]
    parts = [_pooled(means)]
    if factors:
        parts.append(_pooled([list(map(math.log, side)) for side in factors]))
    seeds = [[statistics.fmean(column) for column in zip(*side, strict=True)] for side in sides]
    logs = [own - other for other, own in zip(*seeds, strict=True)]
    if len(logs) > 1:
        parts.append((statistics.variance(logs) / len(logs), len(logs) - 1))
    return comparison(statistics.fmean(logs), *_added(parts), min(map(len, means)))


def _pooled(sides: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the variance of the difference of two means, and its degrees of freedom."""
    freedom = sum(len(side) - 1 for side in sides)
    pooled = sum(statistics.variance(side) * (len(side) - 1) for side in sides) / freedom
    return pooled * sum(1 / len(side) for side in sides), freedom


def _added(parts: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return the error and the degrees of freedom of independent variances (Welch)."""
    whole = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    return math.sqrt(whole), whole**2 / spread if spread else parts[0][1]


def compare_pairs(reference: Sequence[float], variant: Sequence[float]) -> Comparison:
    """Return the variant's time over the reference's, from times taken in pairs.

    The i-th time of both was taken soon after the other, or with the same seed.
    """
    assert len(reference) == len(variant) >= LEAST
    logs = [math.log(own / other) for other, own in zip(reference, variant, strict=True)]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return comparison(statistics.fmean(logs), error, len(logs) - 1, len(logs))


def compare_apart(reference: Sequence[float], variant: Sequence[float]) -> Comparison:
    """Return the variant's time over the reference's, from processes measured at other times.

    Each side has a scatter of its own (Welch). What the machine did between the two measurements is
    in no interval.
    """
    assert min(len(reference), len(variant)) >= LEAST
    sides = [[math.log(value) for value in side] for side in (reference, variant)]
    parts = [(statistics.variance(side) / len(side), len(side) - 1) for side in sides]
    error, freedom = _added(parts)
    least, most = sorted(len(side) - 1 for side in sides)
    # Welch's degrees promise too much where one side has very few and the other more.
    if least < most and least + 1 < _WELCH_FROM:
        freedom = least
    middle = statistics.fmean(sides[1]) - statistics.fmean(sides[0])
    return comparison(middle, error, freedom, least + 1)


def comparison(middle: float, error: float, freedom: float, processes: int) -> Comparison:
    """Return the comparison of a mean difference of logarithms, with its standard error."""
    reach = max(students_t(freedom) * error, NARROWEST)
    ends = math.exp(middle - reach), math.exp(middle + reach)
    return Comparison(math.exp(middle), *ends, processes)


def students_t(freedom: float) -> float:
    """Return the quantile of Student's distribution for a two-sided 95 % interval."""
    from scipy import stats

    return float(stats.t.ppf(0.975, freedom))
