"""Figures of a variant that follow from its blocks: peaks, medians, batch, time for an example.

Guarantees: only valid blocks count; a figure that no block has is None, and ``why`` has the
reason that the blocks give.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tfopt.report.bench.bench_report import BenchReport, VariantReport

PHASES = ("start_s", "build_s", "first_step_s", "warm_up_s")
# A change of the block medians from the first round to the last, and a correlation of
# neighbouring windows, from which on a reader is told.
DRIFT_TOLD_FROM = 0.02
CORRELATION_TOLD_FROM = 0.5
# The mean step over the median step, from which on a reader is told.
STALLS_TOLD_FROM = 1.2


@dataclass(frozen=True)
class Peak:
    """The highest value over the blocks, in MiB, or why there is none."""

    mib: float | None
    why: str


def peak(variant: VariantReport, name: str) -> Peak:
    """The peak ``name`` of ``BlockMemory``, over the blocks that count."""
    found = [value for block in variant.valid if (value := getattr(block.memory, name)) is not None]
    if found:
        return Peak(max(found), "")
    reasons = [block.memory.unavailable[name] for block in variant.valid]
    return Peak(None, reasons[0] if reasons else "no block was measured")


def phase_s(variant: VariantReport, name: str) -> float:
    """The median of a phase over the blocks that count."""
    return float(statistics.median(getattr(block, name) for block in variant.valid))


def example_ms(variant: VariantReport) -> float | None:
    """The time of one example at the median step time."""
    examples = variant.examples_per_step
    return None if examples is None else variant.percentile_ms(50) / examples


def one_batch(report: BenchReport) -> bool:
    """Whether step times can be compared as they are."""
    return len({variant.examples_per_step for variant in report.measured}) <= 1


def lost(variant: VariantReport) -> bool:
    """Whether quality was measured and is lost: such a variant is never recommended."""
    return variant.quality is not None and variant.quality.lost


def kept(report: BenchReport) -> VariantReport | None:
    """The variant that is recommended, if it was measured and loses nothing."""
    if report.recommendation is None or report.recommendation.keep is None:
        return None
    chain = report.recommendation.keep
    # A chain may be measured again at the end, under a name of its own: that is the later one.
    found = [v for v in report.measured if v.chain == chain and v is not report.reference]
    return found[-1] if found and not lost(found[-1]) else None


def drifts(variant: VariantReport) -> bool:
    """Whether the level moved over the rounds, by more than its own error can be."""
    steady = variant.steadiness
    if steady is None or steady.drift is None or steady.drift_error is None:
        return False
    return abs(steady.drift) > max(DRIFT_TOLD_FROM, 2 * steady.drift_error)


def mean_ms(variant: VariantReport) -> float:
    """All time over all steps; 0 without a block that counts."""
    return statistics.median(block.mean_ms for block in variant.valid) if variant.valid else 0.0


def stalls(variant: VariantReport) -> bool:
    """Whether long waits that a median does not see take much of the time in most blocks."""
    ratios = [block.mean_ms / block.step_ms for block in variant.valid]
    return bool(ratios) and statistics.median(ratios) > STALLS_TOLD_FROM


def depends(variant: VariantReport) -> bool:
    """Whether a window says what the next will be."""
    steady = variant.steadiness
    correlation = steady.autocorrelation if steady else None
    return correlation is not None and abs(correlation) > CORRELATION_TOLD_FROM
