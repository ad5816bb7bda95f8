"""Derive the figures of a variant from its processes and trainings, and what is worth keeping."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tfopt.report.bench_report import PLAIN, BenchReport, VariantReport, is_time
from tfopt.report.footprints import Footprint, Footprints
from tfopt.report.statistics import Comparison
from tfopt.report.table import is_change
from tfopt.report.timed_process import as_compiled
from tfopt.report.training import lowest_final_accuracy

TIMES = ("whole", "to_accuracy", "against_reference")
"""The comparisons of time. The first that its interval can tell decides: few seeds, and what
``tf.data`` waits at the ends of epochs, leave the time of a whole training wide."""


def lost(variant: VariantReport) -> bool:
    """Return whether quality was measured and is lost: such a variant is never recommended."""
    return variant.quality is not None and variant.quality.lost


def decisive(variant: VariantReport) -> tuple[str, Comparison] | None:
    """Return the first comparison of ``TIMES`` that tells, with its name; else the first."""
    found = [(name, time) for name in TIMES if (time := getattr(variant, name)) is not None]
    telling = [pair for pair in found if pair[1].verdict != "inconclusive"]
    return next(iter(telling or found), None)


def is_faster(variant: VariantReport) -> bool:
    """Return whether it is certainly faster, and loses nothing that is known."""
    found = decisive(variant)
    return found is not None and found[1].verdict == "faster" and not lost(variant)


def recommended(report: BenchReport) -> VariantReport | None:
    """Return the variant under the chain to keep; None where that is the job as it is."""
    keep = report.recommendation.keep if report.recommendation is not None else None
    # A chain may be measured again at the end, under another name: that is the later one.
    own = (variant for variant in reversed(report.measured) if variant.chain == keep != PLAIN)
    return next(own, None)


def kept(report: BenchReport) -> VariantReport | None:
    """Return the variant that is recommended, if it is certainly faster or smaller, and as good."""
    own = recommended(report)
    if own is None or lost(own):
        return None
    if not is_time(report.asked.objective):
        return own  # a search keeps only what certainly takes less
    better = is_faster(own) or _is_smaller(report, own)
    if report.asked.kind == "ablation":
        found = [decisive(variant) for variant in report.measured]
        better = better or any(pair is not None and pair[1].verdict == "slower" for pair in found)
    return own if better else None


def kept_for(report: BenchReport, variant: VariantReport) -> str:
    """Return what a variant is kept for: speed, size, or both; empty where it is neither."""
    if not is_time(report.asked.objective):
        return str(report.asked.objective)
    aims = {"speed": is_faster(variant), "size": _is_smaller(report, variant)}
    return " and ".join(name for name, reached in aims.items() if reached)


def _is_smaller(report: BenchReport, variant: VariantReport) -> bool:
    found = sizes(report.reference, variant, report.serving)
    return found is not None and found[1] > found[2] and is_change(found[1] / found[2])


def middle_training(variant: VariantReport, name: str) -> float | None:
    """Return the median of a figure over the trainings that have it."""
    values = [getattr(training, name) for training in variant.trainings]
    known = [value for value in values if value is not None]
    return float(statistics.median(known)) if known else None


def target(report: BenchReport) -> float | None:
    """Return the accuracy on ten test batches that each training of the reference ends with."""
    return lowest_final_accuracy(report.reference.trainings)


def steps_to_target(report: BenchReport, variant: VariantReport) -> list[float]:
    """Return the steps of each training to the reference's accuracy; none where one misses it."""
    wanted = target(report)
    if wanted is None:
        return []
    taken = [training.steps_to(wanted) for training in variant.trainings]
    known = [steps for steps in taken if steps is not None]
    return known if len(known) == len(taken) else []


def training_s(variant: VariantReport, steps: Sequence[float]) -> float | None:
    """Return the median time of trainings of so many steps; None without any."""
    if not steps or not variant.processes:
        return None
    share = statistics.fmean(training.epoch_end_share for training in variant.trainings)
    processes = as_compiled(variant.processes)
    return statistics.median(one.training_s(count, share) for one in processes for count in steps)


def served_by(
    reference: VariantReport, variant: VariantReport, serving: Footprints | None
) -> tuple[Footprint, Footprint] | None:
    """Return what the two would serve; None where that was not compared."""
    served = {} if serving is None else {row.name: row for row in serving.rows}
    first, own = served.get(reference.name), served.get(variant.name)
    return None if first is None or own is None or own is first else (first, own)


def sizes(
    reference: VariantReport, variant: VariantReport, serving: Footprints | None = None
) -> tuple[str, float, float] | None:
    """Return which of their files was sized, and its KiB for the reference and the variant."""
    served = served_by(reference, variant, serving)
    if served is not None and is_change(served[0].kib / served[1].kib):
        return "file", served[0].kib, served[1].kib
    if served is not None:
        # Zeros take as much room as other weights until the file is compressed.
        return "gzipped file", served[0].gzip_kib, served[1].gzip_kib
    before, after = (middle_training(row, "artefact_kib") for row in (reference, variant))
    if after is not None and (before is None or is_change(before / after)):
        label, before = "file", before or middle_training(reference, "model_kib")
    else:
        label = "gzipped model"
        before, after = (middle_training(v, "model_gzip_kib") for v in (reference, variant))
    return (label, before, after) if before and after else None
