"""Define the columns of a report: what is shown of its variants."""

from __future__ import annotations

import statistics
from dataclasses import replace

from tfopt.report import format as fmt
from tfopt.report.bench_figures import middle_training, steps_to_target, target, training_s
from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.table import Cell, Column, absent, figure, speed, timed

_FEWER = {"faster": "fewer", "slower": "more"}
_UNTRAINED = "it was not trained as a whole"


def columns_of(report: BenchReport) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Return the columns, and notes on them and on those that have no figures."""
    shown, notes = [], []
    if target(report) is not None:
        notes.append(
            "Time to accuracy is read on ten batches spread over the test part, whose score is not "
            "that of all of it."
        )
    for column in (*_training_columns(report), *_STEPS):
        cells = [column.make(variant) for variant in report.measured]
        if not cells or any(cell.text != fmt.NOT_AVAILABLE for cell in cells):
            shown.append(column)
        else:
            reasons = "; ".join(dict.fromkeys(cell.reason for cell in cells))
            notes.append(f"Not measured: {column.heading}: {reasons}")
    return tuple(shown), tuple(notes)


def _training_columns(report: BenchReport) -> tuple[Column, ...]:
    """Return the columns of whole trainings; none where the reference has none."""
    if not report.reference.trainings:
        return ()
    wanted = target(report)
    versus = "vs. reference" if wanted is None else f"to {fmt.share(wanted)}, vs. reference"

    def seconds(variant: VariantReport) -> Cell:
        value = training_s(variant, steps_to_target(report, variant))
        return reached(variant, "to_accuracy", value)

    def steps(variant: VariantReport) -> Cell:
        counts = steps_to_target(report, variant)
        middle = statistics.median(counts) if counts else None
        cell = reached(variant, "steps_to_accuracy", middle)
        return replace(cell, badge=_FEWER.get(cell.badge, cell.badge))

    def whole(variant: VariantReport) -> Cell:
        value = training_s(variant, [training.steps for training in variant.trainings])
        return reached(variant, "whole", value)

    def reached(variant: VariantReport, name: str, value: float | None) -> Cell:
        """Return a figure of a training, with the comparison ``name``."""
        if value is None:
            return absent(variant.unavailable.get(name, _UNTRAINED))
        cell = timed(value, getattr(variant, name))
        if cell.comparison is not None or variant is report.reference:
            return cell
        few = "one training" if len(variant.trainings) == 1 else "no interval"
        return replace(cell, badge=few)

    return (
        Column("Time to accuracy, s", versus, seconds),
        Column("Steps to accuracy", "examples vs. reference", steps),
        Column("Whole training, s", "vs. reference", whole),
        Column("Test accuracy", "lowest, highest", _accuracy),
        Column("Model, KiB", "gzipped", lambda v: _pair(v, "model_kib", "model_gzip_kib")),
        Column("File, KiB", "accuracy", lambda v: _pair(v, "artefact_kib", "artefact_accuracy")),
    )


def _accuracy(variant: VariantReport) -> Cell:
    found = [f.test_accuracy for f in variant.trainings if f.test_accuracy is not None]
    middle = middle_training(variant, "test_accuracy")
    if middle is None:
        return _untold(variant, "test_accuracy")
    spread = f"{fmt.share(min(found))}, {fmt.share(max(found))}" if len(found) > 1 else ""
    return Cell(fmt.share(middle), spread)


def _pair(variant: VariantReport, first: str, second: str) -> Cell:
    """Return the medians of two figures, the second a size too or a share."""
    one, other = (middle_training(variant, name) for name in (first, second))
    if one is None:
        return _untold(variant, first)
    if other is None:
        reason = _untold(variant, second).reason
        return Cell(fmt.quantity(one), fmt.NOT_AVAILABLE, reason=reason)
    write = fmt.share if second.endswith("accuracy") else fmt.quantity
    return Cell(fmt.quantity(one), write(other))


def _untold(variant: VariantReport, name: str) -> Cell:
    """Return the reason of the first training, or why there is none."""
    if not variant.trainings:
        return absent(variant.unavailable.get("whole", _UNTRAINED))
    return absent(variant.trainings[0].unavailable[name])


def step_cell(variant: VariantReport) -> Cell:
    """Return the median time of a step, and its 90th percentile."""
    return Cell(fmt.quantity(variant.step_ms), fmt.quantity(variant.percentile_ms(90)))


def peak_cell(variant: VariantReport, name: str) -> Cell:
    """Return the highest value over the processes, in MiB."""
    values = (getattr(process, name) for process in variant.processes)
    known = [value for value in values if value is not None]
    return figure(max(known), "") if known else absent(variant.processes[0].unavailable[name])


def first_step_cell(variant: VariantReport) -> Cell:
    """Return the median first step that compiled, and that of programs from the compile cache."""
    compiled = [process.first_step_s for process in variant.processes if process.new_programs != 0]
    cached = [process.first_step_s for process in variant.processes if process.new_programs == 0]
    texts = [fmt.quantity(statistics.median(values)) for values in (compiled, cached) if values]
    if not compiled:
        return Cell(texts[0], "from the cache")
    return Cell(texts[0], f"{texts[1]} from the cache" if cached else "")


def _batch(variant: VariantReport) -> Cell:
    batch = variant.batch_size
    if batch is None:
        return absent(variant.processes[0].unavailable["batch_size"])
    return Cell(f"{batch:,}")


def _examples(variant: VariantReport) -> Cell:
    examples = variant.examples_per_s
    return _batch(variant) if examples is None else Cell(fmt.quantity(examples))


def _against(variant: VariantReport, name: str) -> Cell:
    found = getattr(variant, name)
    return absent(variant.unavailable[name]) if found is None else speed(found)


def _quality(variant: VariantReport) -> Cell:
    quality = variant.quality
    if quality is None:
        return absent(variant.unavailable["quality"])
    text, interval = fmt.signed_points(quality.points), fmt.points_interval(quality)
    if quality.lost:
        return Cell(f"{text} lost", interval, "worse")
    return Cell(text, interval, "better" if quality.low > 0 else "plain")


_STEPS = (
    Column("Step, ms", "p90", step_cell),
    Column("Batch", "", _batch),
    Column("Examples/s", "", _examples),
    Column("Speed, an example", "vs. reference", lambda v: _against(v, "against_reference")),
    Column("Speed, an example", "vs. previous", lambda v: _against(v, "against_previous")),
    Column("Quality, points", "95 % interval", _quality),
    Column("Host peak, MiB", "", lambda v: peak_cell(v, "host_peak_mib")),
    Column("GPU peak, MiB", "", lambda v: peak_cell(v, "gpu_peak_mib")),
    Column("First step, s", "", first_step_cell),
)
