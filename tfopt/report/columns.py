"""The columns of a report's table: which figure, against what, and which direction is better.

Guarantees: a figure that is None becomes "n/a" with its reason as a numbered footnote; equal
reasons share one footnote; a colour is given only to a change beyond the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from tfopt.report import format as fmt
from tfopt.report.schema import (
    ACCURACY_TOLERANCE_POINTS,
    BASELINE,
    KEPT,
    Comparison,
    Figures,
    Noise,
    Report,
    Row,
    is_accuracy_change,
    is_change,
    seconds_to_accuracy,
)

# Before and after as bars: a length for every measured row, with the baseline's for comparison.
#
# Guarantees: each group starts at zero and has one scale; a row without the figure has a bar of
# no length that says so.

Kind = Literal["baseline", "step", "kept", "absent"]


@dataclass(frozen=True)
class Bar:
    """One row's bar; ``percent`` of the longest of its group."""

    name: str
    text: str
    percent: float
    kind: Kind


@dataclass(frozen=True)
class BarGroup:
    """Bars of one figure; ``mark_percent`` is where the baseline's ends."""

    title: str
    hint: str
    bars: tuple[Bar, ...]
    mark_percent: float | None


def bars_of(report: Report) -> tuple[BarGroup, ...]:
    """The groups for which there is anything to compare."""
    groups = (
        _group(report, "Training time", "seconds; shorter is better", _training),
        _group(report, "Throughput", "examples per second; longer is better", _throughput),
        _group(report, "Gzipped model", "KiB; shorter is better", _gzipped),
    )
    return tuple(group for group in groups if group is not None)


def _group(
    report: Report, title: str, hint: str, read: Callable[[Figures], tuple[float, str] | None]
) -> BarGroup | None:
    found = [(row, read(row.figures) if row.figures else None) for row in report.rows]
    longest = max((value for _, figure in found if figure for value in figure[:1]), default=0.0)
    if longest == 0 or sum(figure is not None for _, figure in found) < 2:
        return None
    kept = None if report.nothing_kept else KEPT
    bars = tuple(_bar(row, figure, longest, kept) for row, figure in found)
    mark = bars[0].percent if bars[0].kind == "baseline" else None
    return BarGroup(title, hint, bars, mark)


def _bar(row: Row, figure: tuple[float, str] | None, longest: float, kept: str | None) -> Bar:
    name = fmt.one_line(row.name)
    if figure is None:
        told = fmt.NOT_AVAILABLE if row.figures else row.status.replace("_", " ")
        return Bar(name, told, 0.0, "absent")
    kinds: dict[str | None, Kind] = {BASELINE: "baseline", kept: "kept"}
    value, text = figure
    return Bar(name, text, round(100 * value / longest, 1), kinds.get(row.name, "step"))


def _training(figures: Figures) -> tuple[float, str]:
    return figures.train_s, f"{fmt.quantity(figures.train_s)} s"


def _throughput(figures: Figures) -> tuple[float, str] | None:
    speed = figures.examples_per_s
    return None if speed is None else (speed, f"{fmt.quantity(speed)}/s")


def _gzipped(figures: Figures) -> tuple[float, str] | None:
    kib = figures.model_gzip_kib
    return None if kib is None else (kib, f"{fmt.quantity(kib)} KiB")


Tone = Literal["better", "worse", "plain"]


@dataclass(frozen=True)
class Cell:
    """One figure as text, with a second one that belongs to it.

    ``tone`` is that of the second figure, and of the first where it stands alone.
    """

    text: str
    detail: str = ""
    tone: Tone = "plain"
    footnote: int | None = None
    reason: str = ""


class Footnotes:
    """Numbers reasons in the order in which they first appear."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, reason: str) -> int:
        """The footnote that tells ``reason``."""
        return self._numbers.setdefault(reason, len(self._numbers) + 1)

    def numbered(self, cell: Cell) -> Cell:
        """The cell with the footnote of its reason, if it has one."""
        return replace(cell, footnote=self.number(cell.reason)) if cell.reason else cell

    @property
    def texts(self) -> tuple[str, ...]:
        """All reasons; the first is footnote 1."""
        return tuple(self._numbers)


@dataclass(frozen=True)
class Heading:
    """The title of a column with its unit, and what stands second in its cells."""

    title: str
    detail: str

    @property
    def heading(self) -> str:
        """The title and what stands in parentheses in the cells."""
        return f"{self.title} ({self.detail})" if self.detail else self.title


@dataclass(frozen=True)
class TableRow:
    """A row of the table: its cells, or what became of it where it has none."""

    name: str
    status: str
    status_text: str
    measured: bool
    kept: bool
    cells: tuple[Cell, ...]
    story: tuple[str, ...]
    """Why it was not measured, and what its transform did."""


@dataclass(frozen=True)
class Column(Heading):
    """A column, and how a cell of it is made."""

    make: Callable[[Figures, Comparison | None], Cell]

    def cell(self, figures: Figures, against: Comparison | None, footnotes: Footnotes) -> Cell:
        """The cell of one row; ``against`` is None in the baseline's."""
        return footnotes.numbered(self.make(figures, against))


def columns_of(report: Report) -> tuple[Column, ...]:
    """The columns, the telling ones first."""
    noise = report.noise
    target = report.baseline.test_accuracy if report.baseline else None
    return (
        Column("Step, ms", "p90", _step),
        Column("Batch", "", _batch),
        Column("Examples/s", "vs. baseline", partial(_throughput_column, noise)),
        Column("Training, s", "speed-up", partial(_training_column, noise)),
        Column("Test accuracy", "points", _accuracy),
        Column("To baseline accuracy, s", "", partial(_to_accuracy, target)),
        Column("First step, s", "", _first_step),
        Column("Peak host, MiB", "", _host),
        Column("Peak GPU, MiB", "", _gpu),
        Column("Model, KiB", "gzipped", _model),
        Column("File, KiB", "accuracy", _file),
    )


def time_tone(speedup: float | None, noise: Noise | None) -> Tone:
    """Better or worse, when the ratio of two times is beyond the noise."""
    if speedup is None or not is_change(speedup, noise):
        return "plain"
    return "better" if speedup > 1 else "worse"


def accuracy_tone(points: float | None) -> Tone:
    """Better or worse, when the difference is beyond the tolerance."""
    if points is None or not is_accuracy_change(points):
        return "plain"
    return "better" if points > 0 else "worse"


def size_tone(shrink: float | None) -> Tone:
    """Better or worse; sizes have no noise, but a small change is none to speak of."""
    return time_tone(shrink, None)


def _figure(
    figures: Figures, name: str, value: float | None, detail: str = "", tone: Tone = "plain"
) -> Cell:
    if value is None:
        return Cell(fmt.NOT_AVAILABLE, reason=fmt.one_line(figures.unavailable[name]))
    return Cell(fmt.quantity(value), detail, tone)


def _second(cell: Cell, figures: Figures, name: str, told: str | None, what: str) -> Cell:
    """Adds a second figure to a cell, or "n/a" with its reason."""
    if cell.reason:
        return cell
    if told is not None:
        return replace(cell, detail=told)
    reason = f"{what}: {fmt.one_line(figures.unavailable[name])}"
    return replace(cell, detail=fmt.NOT_AVAILABLE, reason=reason)


def _step(figures: Figures, _: Comparison | None) -> Cell:
    cell = _figure(figures, "step_ms_median", figures.step_ms_median)
    p90 = figures.step_ms_p90
    return _second(cell, figures, "step_ms_p90", None if p90 is None else fmt.quantity(p90), "p90")


def _batch(figures: Figures, _: Comparison | None) -> Cell:
    if figures.batch_size is None:
        return _figure(figures, "batch_size", None)
    return Cell(str(figures.batch_size))


def _throughput_column(noise: Noise | None, figures: Figures, against: Comparison | None) -> Cell:
    ratio = against.examples_per_s_ratio if against else None
    detail = fmt.factor(ratio) if ratio else ""
    tone = time_tone(ratio, noise)
    return _figure(figures, "examples_per_s", figures.examples_per_s, detail, tone)


def _training_column(noise: Noise | None, figures: Figures, against: Comparison | None) -> Cell:
    speedup = against.train_speedup if against else None
    detail = fmt.factor(speedup) if speedup else ""
    return Cell(fmt.quantity(figures.train_s), detail, time_tone(speedup, noise))


def _accuracy(figures: Figures, against: Comparison | None) -> Cell:
    if figures.test_accuracy is None:
        return _figure(figures, "test_accuracy", None)
    points = against.accuracy_points if against else None
    detail = "" if points is None else fmt.signed_points(points)
    return Cell(fmt.share(figures.test_accuracy), detail, accuracy_tone(points))


def _to_accuracy(target: float | None, figures: Figures, _: Comparison | None) -> Cell:
    seconds = seconds_to_accuracy(figures, target)
    if seconds is not None:
        return Cell(fmt.quantity(seconds))
    if target is None:
        reason = "the baseline has no test accuracy"
    elif any(epoch.test_accuracy is not None for epoch in figures.epochs):
        reason = (
            f"no epoch came within {ACCURACY_TOLERANCE_POINTS:g} points of the baseline's "
            "final test accuracy"
        )
    else:
        reason = "no test accuracy was measured after its epochs"
    return Cell(fmt.NOT_AVAILABLE, reason=reason)


def _first_step(figures: Figures, _: Comparison | None) -> Cell:
    return _figure(figures, "first_step_s", figures.first_step_s)


def _host(figures: Figures, _: Comparison | None) -> Cell:
    return _figure(figures, "peak_host_mib", figures.peak_host_mib)


def _gpu(figures: Figures, against: Comparison | None) -> Cell:
    tone = size_tone(against.gpu_shrink if against else None)
    return _figure(figures, "peak_gpu_mib", figures.peak_gpu_mib, tone=tone)


def _model(figures: Figures, against: Comparison | None) -> Cell:
    tone = size_tone(against.model_gzip_shrink if against else None)
    cell = _figure(figures, "model_kib", figures.model_kib, tone=tone)
    zipped = figures.model_gzip_kib
    told = None if zipped is None else fmt.quantity(zipped)
    return _second(cell, figures, "model_gzip_kib", told, "gzipped")


def _file(figures: Figures, against: Comparison | None) -> Cell:
    tone = accuracy_tone(against.artefact_accuracy_points if against else None)
    cell = _figure(figures, "artefact_kib", figures.artefact_kib, tone=tone)
    accuracy = figures.artefact_accuracy
    told = None if accuracy is None else fmt.share(accuracy)
    return _second(cell, figures, "artefact_accuracy", told, "accuracy of the file")
