"""Lay out the plots of a page: speeds against the reference.

A plot holds places in percent of a logarithmic axis, which the page's template draws. What was not
measured is not drawn: the table says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench_figures import kept, lost
from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.statistics import SAME_WITHIN, Comparison

_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_TITLES = {
    "to_accuracy": "Speed to the reference's test accuracy",
    "whole": "Speed of whole trainings at equal epochs",
    "against_reference": "Speed of an example",
}
# By the name of the page's colour, what it stands for.
_COLOURS = {
    "kept": "kept chain",
    "step": "faster",
    "worse": "slower",
    "amber": "quality lost",
    "soft": "no difference or inconclusive",
}


@dataclass(frozen=True)
class Point:
    """A variant's speed, and the name of the page's colour for it."""

    name: str
    comparison: Comparison
    colour: str

    @property
    def told(self) -> str:
        """Return name, speed and interval, as a screen reader says them."""
        return f"{self.name} {fmt.speed_and_interval(self.comparison)}"


@dataclass(frozen=True)
class Plot:
    """One drawing, on a logarithmic axis from 3 % to 97 % of its room."""

    title: str
    caption: str
    points: tuple[Point, ...]

    def place(self, speed: float) -> float:
        """Return the place of a speed, in percent."""
        ends = [
            1 / end for each in self.points for end in (each.comparison.low, each.comparison.high)
        ]
        low, high = min(1 - SAME_WITHIN, *ends), max(1 + SAME_WITHIN, *ends)
        return round(3 + 94 * math.log(speed / low) / math.log(high / low), 2)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Return a few places with their numbers."""
        places = [(self.place(speed), f"{speed:g}") for speed in _TICKS]
        return [tick for tick in places if 3 <= tick[0] <= 97]

    @property
    def same(self) -> tuple[float, float]:
        """Return the ends of the band in which two variants are the same."""
        return self.place(1 - SAME_WITHIN), self.place(1 + SAME_WITHIN)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Return each colour that is used, with what it stands for."""
        used = {point.colour for point in self.points}
        return [(colour, text) for colour, text in _COLOURS.items() if colour in used]


def plots_of(report: BenchReport) -> tuple[Plot, ...]:
    """Return a plot of each comparison with the reference that was made, whole trainings first."""
    plots = (_plot(report, name, title) for name, title in _TITLES.items())
    return tuple(plot for plot in plots if plot.points)


def _plot(report: BenchReport, name: str, title: str) -> Plot:
    compared = [v for v in report.measured if getattr(v, name) is not None]
    points = (
        Point(fmt.one_line(v.name), getattr(v, name), _colour(report, v, getattr(v, name)))
        for v in compared
    )
    caption = (
        "Further to the right is faster. The line is the 95 % interval; the band is the reference "
        f"\N{PLUS-MINUS SIGN}{fmt.percent(SAME_WITHIN)}."
    )
    shown = [report.reference, *compared]
    missing = [fmt.one_line(v.name) for v in report.measured if v not in shown]
    if missing:
        caption += f" Not compared: {', '.join(missing)}."
    return Plot(title, caption, tuple(points))


def _colour(report: BenchReport, variant: VariantReport, comparison: Comparison) -> str:
    if lost(variant):
        return "amber"
    if variant is kept(report):
        return "kept"
    return {"faster": "step", "slower": "worse"}.get(comparison.verdict, "soft")
