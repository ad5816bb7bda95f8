"""Lay whole trainings out in words: columns of the table, and each training with its epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tfopt.report import format as fmt
from tfopt.report.bench_figures import middle_training, target, to_target_s
from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.columns import Cell, Column, absent, verdict_tone
from tfopt.report.training import Figures

TRAINING_HEADINGS = (
    "Seed",
    "Training, s",
    "First step, s",
    "Test accuracy",
    "Host, MiB",
    "GPU, MiB",
    "After each epoch: seconds, accuracy",
)
_FEW_ROUNDS = 3


def training_columns(report: BenchReport) -> tuple[Column, ...]:
    """Return the columns of whole trainings; none where the reference has none."""
    if not report.reference.trainings:
        return ()
    wanted = target(report)
    reached = "vs. reference" if wanted is None else f"to {fmt.share(wanted)}, vs. reference"
    return (
        Column("Until accurate, s", reached, partial(_to_accuracy, report)),
        Column("Training, s", "vs. reference", _whole),
        Column("Test accuracy", "lowest, highest", _accuracy),
        Column("Model, KiB", "gzipped", partial(_pair, "model_kib", "model_gzip_kib")),
        Column("File, KiB", "accuracy", partial(_pair, "artefact_kib", "artefact_accuracy")),
    )


def training_rows(variant: VariantReport) -> tuple[tuple[str, ...], ...]:
    """Return a row for each training, under ``TRAINING_HEADINGS``."""
    return tuple(_row(figures) for figures in variant.trainings)


def how_often(variant: VariantReport) -> str:
    """Return how often it was trained, where that is too seldom to say much."""
    rounds = len(variant.trainings)
    if not 0 < rounds < _FEW_ROUNDS:
        return ""
    return "trained once" if rounds == 1 else f"trained in {rounds} rounds"


def _row(figures: Figures) -> tuple[str, ...]:
    epochs = (
        f"{fmt.quantity(epoch.train_s)} s {_or_not(epoch.test_accuracy, fmt.share)}"
        for epoch in figures.epochs
    )
    return (
        str(figures.seed),
        fmt.quantity(figures.train_s),
        _or_not(figures.first_step_s),
        _or_not(figures.test_accuracy, fmt.share),
        _or_not(figures.peak_host_mib),
        _or_not(figures.peak_gpu_mib),
        "; ".join(epochs) or fmt.NOTHING,
    )


def _or_not(value: float | None, write: Callable[[float], str] = fmt.quantity) -> str:
    return fmt.NOT_AVAILABLE if value is None else write(value)


def _compared(cell: Cell, variant: VariantReport, name: str) -> Cell:
    comparison = getattr(variant, name)
    if comparison is not None:
        return replace(
            cell,
            detail=fmt.speed_and_interval(comparison),
            badge=comparison.verdict,
            tone=verdict_tone(comparison),
        )
    return cell


def _whole(variant: VariantReport) -> Cell:
    seconds = middle_training(variant, "train_s")
    if seconds is None:
        return absent(variant.unavailable["whole"])
    return _compared(Cell(fmt.quantity(seconds)), variant, "whole")


def _to_accuracy(report: BenchReport, variant: VariantReport) -> Cell:
    seconds = to_target_s(report, variant)
    if seconds is None:
        if variant is report.reference:
            return absent("the reference has no test accuracy")
        return absent(variant.unavailable["to_accuracy"])
    return _compared(Cell(fmt.quantity(seconds)), variant, "to_accuracy")


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
        return absent(variant.unavailable["whole"])
    return absent(variant.trainings[0].unavailable[name])
