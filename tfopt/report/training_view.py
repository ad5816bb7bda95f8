"""Lay trainings out in words: columns of the table, and each training with its readings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tfopt.report import format as fmt
from tfopt.report.bench_figures import (
    middle_training,
    steps_to_target,
    target,
    to_target_s,
    whole_s,
)
from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.table import Cell, Column, absent, compared
from tfopt.report.training import Training

_FEW_SEEDS = 3
_FEWER = {"faster": "fewer", "slower": "more"}
_UNTRAINED = "it was not trained as a whole"


def training_columns(report: BenchReport) -> tuple[Column, ...]:
    """Return the columns of whole trainings; none where the reference has none."""
    if not report.reference.trainings:
        return ()
    wanted = target(report)
    reached = "vs. reference" if wanted is None else f"to {fmt.share(wanted)}, vs. reference"
    until = partial(_reached, report, to_target_s, "to_accuracy")
    steps = partial(_reached, report, steps_to_target, "steps_to_accuracy")
    return (
        Column("Until accurate, s", reached, until),
        Column("Steps until accurate", "examples vs. reference", steps),
        Column("Whole training, s", "vs. reference", _whole),
        Column("Test accuracy", "lowest, highest", _accuracy),
        Column("Model, KiB", "gzipped", partial(_pair, "model_kib", "model_gzip_kib")),
        Column("File, KiB", "accuracy", partial(_pair, "artefact_kib", "artefact_accuracy")),
    )


def how_often(variant: VariantReport) -> str:
    """Return how often it was trained, where that is too seldom to say much."""
    seeds = len(variant.trainings)
    if not 0 < seeds < _FEW_SEEDS:
        return ""
    return "trained once" if seeds == 1 else f"trained with {seeds} seeds"


def _read(training: Training) -> str:
    read = (f"{each.steps:,}: {fmt.share(each.accuracy)}" for each in training.readings)
    return "; ".join(read) or fmt.NOTHING


def _final(training: Training) -> str:
    last = training.test_accuracy
    return fmt.NOT_AVAILABLE if last is None else fmt.share(last)


TRAINING: dict[str, Callable[[Training], str]] = {
    "Seed": lambda training: str(training.seed),
    "Steps": lambda training: f"{training.steps:,}",
    "Epochs": lambda training: str(training.epochs),
    "Ends of epochs": lambda training: fmt.percent(training.epoch_end_share),
    "Test accuracy": _final,
    "After so many steps: accuracy": _read,
}
"""What is listed of each training, by its heading."""


def _whole(variant: VariantReport) -> Cell:
    seconds = whole_s(variant)
    if seconds is None:
        return absent(variant.unavailable.get("whole", _UNTRAINED))
    return compared(seconds, variant.whole)


def _reached(
    report: BenchReport,
    way: Callable[[BenchReport, VariantReport], float | None],
    name: str,
    variant: VariantReport,
) -> Cell:
    """Return a figure of the way to the reference's accuracy, compared by ``name``."""
    value = way(report, variant)
    if value is not None:
        cell = compared(value, getattr(variant, name))
        fewer = _FEWER if name == "steps_to_accuracy" else {}
        return replace(cell, badge=fewer.get(cell.badge, cell.badge))
    if variant is report.reference:
        return absent("the reference has no test accuracy")
    return absent(variant.unavailable.get(name, _UNTRAINED))


def _accuracy(variant: VariantReport) -> Cell:
    middle = middle_training(variant, "test_accuracy")
    if middle is None:
        return _why(variant, "test_accuracy")
    found = [f.test_accuracy for f in variant.trainings if f.test_accuracy is not None]
    spread = f"{fmt.share(min(found))}, {fmt.share(max(found))}" if len(found) > 1 else ""
    return Cell(fmt.share(middle), spread)


def _pair(first: str, second: str, variant: VariantReport) -> Cell:
    """Return the medians of two figures, the second a size too or a share."""
    one, other = (middle_training(variant, name) for name in (first, second))
    if one is None:
        return _why(variant, first)
    if other is None:
        reason = _why(variant, second).reason
        return Cell(fmt.quantity(one), fmt.NOT_AVAILABLE, reason=reason)
    write = fmt.share if second.endswith("accuracy") else fmt.quantity
    return Cell(fmt.quantity(one), write(other))


def _why(variant: VariantReport, name: str) -> Cell:
    """Return the reason of the first training, or why there is none."""
    if not variant.trainings:
        return absent(variant.unavailable.get("whole", _UNTRAINED))
    return absent(variant.trainings[0].unavailable[name])
