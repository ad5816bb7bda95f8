"""Make the cells of a report's table: which figure, against what, and which direction is better.

A figure that is None becomes "n/a" with its reason as a numbered footnote, and only a change beyond
the noise has a colour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from tfopt.report import footprint
from tfopt.report import format as fmt
from tfopt.report.schema import (
    ACCURACY_TOLERANCE_POINTS,
    Comparison,
    Figures,
    Noise,
    Report,
    Status,
    is_accuracy_change,
    is_change,
    seconds_to_accuracy,
)

Tone = Literal["better", "worse", "plain"]


@dataclass(frozen=True)
class Cell:
    """One figure as text, with a second one that belongs to it, and a verdict on both.

    ``tone`` is that of the second figure and the verdict, and of the first where it stands alone.
    """

    text: str
    detail: str = ""
    tone: Tone = "plain"
    footnote: int | None = None
    reason: str = ""
    badge: str = ""


class Footnotes:
    """The reasons of a table, numbered in the order in which they first appear."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, reason: str) -> int:
        """Return the number of the footnote with this reason."""
        return self._numbers.setdefault(reason, len(self._numbers) + 1)

    def numbered(self, cell: Cell) -> Cell:
        """Return the cell with the footnote of its reason, if it has one."""
        return replace(cell, footnote=self.number(cell.reason)) if cell.reason else cell

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all reasons; the first is footnote 1."""
        return tuple(self._numbers)


def absent(reason: str) -> Cell:
    """Return the cell of a figure that is not there."""
    return Cell(fmt.NOT_AVAILABLE, reason=fmt.one_line(reason))


@dataclass(frozen=True)
class Heading:
    """The title of a column with its unit, and what stands second in its cells."""

    title: str
    detail: str

    @property
    def heading(self) -> str:
        """Return the title and what stands in parentheses in the cells."""
        return f"{self.title} ({self.detail})" if self.detail else self.title


@dataclass(frozen=True)
class TableRow:
    """A row of the table: its cells, or what became of it where it has none."""

    name: str
    status: Status
    kept: bool
    cells: tuple[Cell, ...]
    story: tuple[str, ...]
    """Why it was not measured, and what its transform did."""

    @property
    def measured(self) -> bool:
        """Return whether the row has figures."""
        return self.status == "measured"

    @property
    def status_text(self) -> str:
        """Return the status in words."""
        return self.status.replace("_", " ")


@dataclass(frozen=True)
class Column(Heading):
    """A column, and how a cell of it is made."""

    make: Callable[..., Cell]
    """From a row's figures, and their comparison with the baseline's in a report of a training."""


def columns_of(report: Report) -> tuple[Column, ...]:
    """Return the columns, the telling ones first."""
    noise = report.noise
    target = report.baseline.test_accuracy if report.baseline else None
    return (
        Column("Step, ms", "p90", _step),
        Column("Batch", "", _batch),
        Column("Examples/s", "vs. baseline", partial(_throughput, noise)),
        Column("Training, s", "speed-up", partial(_training, noise)),
        Column("Test accuracy", "points", _accuracy),
        Column("To baseline accuracy, s", "", partial(_to_accuracy, target)),
        Column("First step, s", "", partial(_plain, "first_step_s")),
        Column("Peak host, MiB", "", partial(_plain, "peak_host_mib")),
        Column("Peak GPU, MiB", "", _gpu),
        Column("Model, KiB", "gzipped", _model),
        Column("File, KiB", "accuracy", _file),
    )


def time_tone(speedup: float | None, noise: Noise | None) -> Tone:
    """Return whether a ratio of two times is better or worse, beyond the noise."""
    if speedup is None or not is_change(speedup, noise):
        return "plain"
    return "better" if speedup > 1 else "worse"


def accuracy_tone(points: float | None) -> Tone:
    """Return whether a difference is better or worse, beyond the tolerance."""
    if points is None or not is_accuracy_change(points):
        return "plain"
    return "better" if points > 0 else "worse"


def size_tone(shrink: float | None) -> Tone:
    """Return whether a size is better or worse; a small change is none to speak of."""
    return time_tone(shrink, None)


def verdict_tone(comparison: footprint.Comparison) -> Tone:
    """Return whether a time is better or worse, where its interval allows a verdict."""
    tones: dict[str, Tone] = {"faster": "better", "slower": "worse"}
    return tones.get(comparison.verdict, "plain")


def _figure(figures: Figures, name: str, detail: str = "", tone: Tone = "plain") -> Cell:
    value = getattr(figures, name)
    if value is None:
        return absent(figures.unavailable[name])
    return Cell(fmt.quantity(value), detail, tone)


def _second(
    cell: Cell, figures: Figures, name: str, what: str, write: Callable[[float], str] = fmt.quantity
) -> Cell:
    """Return the cell with a second figure, or with "n/a" and its reason."""
    if cell.reason:
        return cell
    value = getattr(figures, name)
    if value is not None:
        return replace(cell, detail=write(value))
    reason = f"{what}: {fmt.one_line(figures.unavailable[name])}"
    return replace(cell, detail=fmt.NOT_AVAILABLE, reason=reason)


def _plain(name: str, figures: Figures, _: Comparison | None) -> Cell:
    return _figure(figures, name)


def _step(figures: Figures, _: Comparison | None) -> Cell:
    return _second(_figure(figures, "step_ms_median"), figures, "step_ms_p90", "p90")


def _batch(figures: Figures, _: Comparison | None) -> Cell:
    if figures.batch_size is None:
        return absent(figures.unavailable["batch_size"])
    return Cell(str(figures.batch_size))


def _throughput(noise: Noise | None, figures: Figures, against: Comparison | None) -> Cell:
    ratio = against.examples_per_s_ratio if against else None
    detail = fmt.factor(ratio) if ratio else ""
    return _figure(figures, "examples_per_s", detail, time_tone(ratio, noise))


def _training(noise: Noise | None, figures: Figures, against: Comparison | None) -> Cell:
    speedup = against.train_speedup if against else None
    detail = fmt.factor(speedup) if speedup else ""
    return Cell(fmt.quantity(figures.train_s), detail, time_tone(speedup, noise))


def _accuracy(figures: Figures, against: Comparison | None) -> Cell:
    if figures.test_accuracy is None:
        return absent(figures.unavailable["test_accuracy"])
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
    return absent(reason)


def _gpu(figures: Figures, against: Comparison | None) -> Cell:
    return _figure(figures, "peak_gpu_mib", tone=size_tone(against.gpu_shrink if against else None))


def _model(figures: Figures, against: Comparison | None) -> Cell:
    tone = size_tone(against.model_gzip_shrink if against else None)
    cell = _figure(figures, "model_kib", tone=tone)
    return _second(cell, figures, "model_gzip_kib", "gzipped")


def _file(figures: Figures, against: Comparison | None) -> Cell:
    tone = accuracy_tone(against.artefact_accuracy_points if against else None)
    cell = _figure(figures, "artefact_kib", tone=tone)
    return _second(cell, figures, "artefact_accuracy", "accuracy of the file", fmt.share)
