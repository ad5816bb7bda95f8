"""Before and after as bars: a length for every measured row, with the baseline's for comparison.

Guarantees: each group starts at zero and has one scale; a row without the figure has a bar of
no length that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tfopt.report import format as fmt
from tfopt.report.figures import Figures
from tfopt.report.schema import BASELINE, KEPT, Report, Row

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
