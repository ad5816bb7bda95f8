"""Derive the figures of a variant from its valid blocks: peaks, medians, time for an example."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.footprint import Footprint
from tfopt.report.training import lowest_final_accuracy

# What a reader must know: a mean step over the median step from here on.
_STALLS = 1.2


@dataclass(frozen=True)
class Peak:
    """The highest value over the blocks, in MiB, or why there is none."""

    mib: float | None
    why: str


def peak(variant: VariantReport, name: str) -> Peak:
    """Return the peak ``name`` of ``BlockMemory``, over the blocks that count."""
    found = [value for block in variant.valid if (value := getattr(block.memory, name)) is not None]
    if found:
        return Peak(max(found), "")
    reasons = [block.memory.unavailable[name] for block in variant.valid]
    return Peak(None, reasons[0] if reasons else "no block was measured")


def phase_s(variant: VariantReport, name: str) -> float:
    """Return the median of a phase over the blocks that count."""
    return float(statistics.median(getattr(block, name) for block in variant.valid))


def example_ms(variant: VariantReport) -> float | None:
    """Return the time of one example at the median step time."""
    examples = variant.examples_per_step
    return None if examples is None else variant.percentile_ms(50) / examples


def lost(variant: VariantReport) -> bool:
    """Return whether quality was measured and is lost: such a variant is never recommended."""
    return variant.quality is not None and variant.quality.lost


def kept(report: BenchReport) -> VariantReport | None:
    """Return the variant that is recommended, if it was measured and loses nothing."""
    if report.recommendation is None or report.recommendation.keep is None:
        return None
    chain = report.recommendation.keep
    # A chain may be measured again at the end, under another name: that is the later one.
    found = [v for v in report.measured if v.chain == chain and v is not report.reference]
    return found[-1] if found and not lost(found[-1]) else None


def mean_ms(variant: VariantReport) -> float:
    """Return all time over all steps; 0 without a block that counts."""
    return statistics.median(block.mean_ms for block in variant.valid) if variant.valid else 0.0


def stalls(variant: VariantReport) -> bool:
    """Return whether waits that a median does not see take much of the time in most blocks."""
    ratios = [block.mean_ms / block.step_ms for block in variant.valid]
    return bool(ratios) and statistics.median(ratios) > _STALLS


def middle_training(variant: VariantReport, name: str) -> float | None:
    """Return the median of a figure over the whole trainings that have it."""
    values = [getattr(figures, name) for figures in variant.trainings]
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def target(report: BenchReport) -> float | None:
    """Return the test accuracy that every whole training of the reference reaches."""
    return lowest_final_accuracy(report.reference.trainings)


def to_target_s(report: BenchReport, variant: VariantReport) -> float | None:
    """Return the median time to that accuracy; None where a training does not reach it."""
    wanted = target(report)
    if wanted is None or not variant.trainings:
        return None
    taken = [figures.seconds_to(wanted) for figures in variant.trainings]
    known = [seconds for seconds in taken if seconds is not None]
    return float(statistics.median(known)) if len(known) == len(taken) else None


def trained_whole(report: BenchReport) -> bool:
    """Return whether whole trainings are what this report is about."""
    return report.asked.whole and bool(report.reference.trainings)


def served_by(report: BenchReport, variant: VariantReport) -> tuple[Footprint, Footprint] | None:
    """Return what the reference and the variant would serve; None where that was not compared."""
    served = {} if report.serving is None else {row.name: row for row in report.serving.rows}
    first, own = served.get(report.reference.name), served.get(variant.name)
    return None if first is None or own is None or own is first else (first, own)
