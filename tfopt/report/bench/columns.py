"""The columns of a bench report's table.

Guarantees: a figure that is None becomes "n/a" with its reason; a column for which no variant
has a figure is left out, and the reason is told once below the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tfopt.report import format as fmt
from tfopt.report.bench import words
from tfopt.report.bench.comparison import Comparison
from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.figures import depends, drifts, peak, phase_s
from tfopt.report.bench.variant import VariantReport
from tfopt.report.columns import Cell, Heading, Tone

_NO_BATCH = "the data do not tell the batch size"


@dataclass(frozen=True)
class Column(Heading):
    """A column, and how a cell of it is made."""

    make: Callable[[VariantReport], Cell]


@dataclass(frozen=True)
class Columns:
    """Those of the table, and in words those that nobody could fill."""

    shown: tuple[Column, ...]
    left_out: tuple[str, ...]


def columns_of(report: BenchReport) -> Columns:
    """The columns, the telling ones first."""
    quick = report.asked.quick
    against = partial(_against, quick, "against_reference")
    previous = partial(_against, quick, "against_previous")
    every = (
        Column("Step p50, ms", "p90, p99", _step),
        Column("Batch", "", _batch),
        Column("Examples/s", "", _examples),
        Column("Time an example", "vs. reference", against),
        Column("Time an example", "vs. previous", previous),
        Column("Quality, points", "95 % interval", _quality),
        Column("Drift", "correlation", _steady),
        Column("Host peak, MiB", "", partial(_peak, "host_peak_mib")),
        Column("GPU peak, MiB", "steady", _gpu),
        Column("NVML peak, MiB", "device", _nvml),
        Column("First step, s", "", _first_step),
    )
    shown, left_out = [], []
    for column in every:
        cells = [column.make(variant) for variant in report.measured]
        if not cells or any(cell.text != fmt.NOT_AVAILABLE for cell in cells):
            shown.append(column)
        else:
            reasons = "; ".join(dict.fromkeys(cell.reason for cell in cells))
            left_out.append(f"{column.heading}: {reasons}")
    return Columns(tuple(shown), tuple(left_out))


def _absent(reason: str) -> Cell:
    return Cell(fmt.NOT_AVAILABLE, reason=fmt.one_line(reason))


def _step(variant: VariantReport) -> Cell:
    p50, p90, p99 = (fmt.quantity(variant.percentile_ms(percent)) for percent in (50, 90, 99))
    return Cell(p50, f"{p90}, {p99}")


def _batch(variant: VariantReport) -> Cell:
    batch = variant.batch_size
    if batch is None:
        return _absent(variant.valid[0].unavailable.get("batch_size", _NO_BATCH))
    return Cell(f"{batch:,}")


def _examples(variant: VariantReport) -> Cell:
    speed = variant.examples_per_s
    return _batch(variant) if speed is None else Cell(fmt.quantity(speed))


def _against(quick: bool, name: str, variant: VariantReport) -> Cell:
    comparison: Comparison | None = getattr(variant, name)
    if comparison is None:
        return _absent(variant.unavailable[name])
    told = f"{words.interval(comparison)} {words.judged(comparison, quick=quick)}"
    return Cell(words.ratio(comparison.ratio), told, words.tone(comparison))


def _quality(variant: VariantReport) -> Cell:
    quality = variant.quality
    if quality is None:
        return _absent(variant.unavailable["quality"])
    told = fmt.signed_points(quality.points)
    tone: Tone = "plain"
    if quality.lost:
        told, tone = f"{told} lost", "worse"
    elif quality.low > 0:
        tone = "better"
    return Cell(told, words.quality_interval(quality), tone)


def _steady(variant: VariantReport) -> Cell:
    steady = variant.steadiness
    if steady is None:
        return _absent(variant.unavailable["steadiness"])
    if steady.drift is None:
        return _absent("a drift needs two blocks")
    correlation = steady.autocorrelation
    detail = fmt.NOT_AVAILABLE if correlation is None else f"{correlation:+.2f}"
    reason = "" if correlation is not None else "correlation: there are too few windows"
    off = drifts(variant), depends(variant)
    return Cell(
        words.change(steady.drift) + (" drifts" if off[0] else ""),
        detail + (" depends" if off[1] else ""),
        "worse" if any(off) else "plain",
        reason=reason,
    )


def _peak(name: str, variant: VariantReport) -> Cell:
    found = peak(variant, name)
    return _absent(found.why) if found.mib is None else Cell(fmt.quantity(found.mib))


def _pair(first: str, second: str, variant: VariantReport) -> Cell:
    """Two peaks; where only the second is there, the first is "n/a" with its reason."""
    cell, beside = _peak(first, variant), peak(variant, second)
    if beside.mib is None:
        told, reason = fmt.NOT_AVAILABLE, cell.reason or fmt.one_line(beside.why)
        return Cell(cell.text, "" if cell.reason else told, reason=reason)
    return Cell(cell.text, fmt.quantity(beside.mib), reason=cell.reason)


def _gpu(variant: VariantReport) -> Cell:
    return _pair("gpu_allocator_peak_mib", "gpu_steady_peak_mib", variant)


def _nvml(variant: VariantReport) -> Cell:
    return _pair("nvml_process_peak_mib", "nvml_device_peak_mib", variant)


def _first_step(variant: VariantReport) -> Cell:
    return Cell(fmt.quantity(phase_s(variant, "first_step_s")))
