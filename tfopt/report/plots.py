"""Lay out the plots of a page: speeds against the reference, with those of the processes.

A plot holds places in percent of a logarithmic axis, which the page's template draws. What was not
measured is not drawn: the table says why.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench_figures import TIMES, kept, lost, shared_times
from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.statistics import SAME_WITHIN, Comparison

_MOST_TICKS = 5
_TICK_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
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
class Axis:
    """A logarithmic axis of speeds, from 3 % to 97 % of the room."""

    low: float
    high: float

    def place(self, speed: float) -> float:
        """Return the place of a speed, in percent."""
        share = math.log(speed / self.low) / math.log(self.high / self.low)
        return round(3 + 94 * share, 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return a few places with numbers: of one step where they are near, else powers of two."""
        low, high = self.low, self.high
        if high < 3 * low:
            step = next(step for step in _TICK_STEPS if high - low < _MOST_TICKS * step)
            speeds = [n * step for n in range(math.ceil(low / step), int(high / step) + 1)]
        else:
            first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
            every = 1 + (last - first) // _MOST_TICKS
            speeds = [2.0**power for power in range(first, last + 1) if power % every == 0]
        return [(self.place(speed), f"{speed:,.4g}") for speed in speeds]


@dataclass(frozen=True)
class Point:
    """A variant's speed; ``interval`` and ``processes`` are places on the axis, as is ``place``."""

    name: str
    speed: str
    colour: str
    place: float
    interval: tuple[float, float]
    processes: tuple[float, ...]


@dataclass(frozen=True)
class Plot:
    """One drawing; ``told`` is what a screen reader says, ``legend`` what a colour stands for."""

    key: str
    title: str
    caption: str
    told: str
    axis: Axis
    points: tuple[Point, ...]
    same: tuple[float, float] = (1 - SAME_WITHIN, 1 + SAME_WITHIN)

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Return each colour that is used, with what it stands for."""
        used = {point.colour for point in self.points}
        return [(colour, text) for colour, text in _COLOURS.items() if colour in used]


def plots_of(report: BenchReport) -> list[Plot]:
    """Return a plot of each comparison with the reference that was made, whole trainings first."""
    plots = (_speeds(report, name) for name in _TITLES)
    return [plot for plot in plots if plot is not None]


def _speeds(report: BenchReport, name: str) -> Plot | None:
    compared = [(v, each) for v in report.measured if (each := getattr(v, name)) is not None]
    if not compared:
        return None
    of_processes = name == TIMES[-1]
    processes = [_of_processes(report, v) if of_processes else () for v, _ in compared]
    ends = [1 / end for _, each in compared for end in (each.low, each.high)]
    ends += [speed for speeds in processes for speed in speeds]
    axis = Axis(min(1 - SAME_WITHIN, *ends), max(1 + SAME_WITHIN, *ends))
    points = tuple(
        Point(
            fmt.one_line(variant.name),
            fmt.speed(each),
            _colour(report, variant, each),
            axis.place(1 / each.ratio),
            (axis.place(1 / each.high), axis.place(1 / each.low)),
            tuple(map(axis.place, speeds)),
        )
        for (variant, each), speeds in zip(compared, processes, strict=True)
    )
    told = (f"{fmt.one_line(v.name)} {fmt.speed_and_interval(each)}" for v, each in compared)
    return Plot(
        name.replace("_", "-"),
        _TITLES[name],
        _caption(report, [variant for variant, _ in compared], any(processes)),
        f"{_TITLES[name]}. {'; '.join(told)}",
        axis,
        points,
    )


def _caption(report: BenchReport, compared: list[VariantReport], processes: bool) -> str:
    caption = (
        "Further to the right is faster. The line is the 95 % interval; the band is the reference "
        f"\N{PLUS-MINUS SIGN}{fmt.percent(SAME_WITHIN)}."
    )
    if processes:
        caption += " The small marks are the processes of the variant."
    shown = [report.reference, *compared]
    missing = [fmt.one_line(v.name) for v in report.measured if v not in shown]
    return f"{caption} Not compared: {', '.join(missing)}." if missing else caption


def _of_processes(report: BenchReport, variant: VariantReport) -> tuple[float, ...]:
    """Return the speed of each process beside the reference's processes."""
    base, own = shared_times(report.reference, variant)
    return tuple(statistics.geometric_mean(base) / time for time in own) if base else ()


def _colour(report: BenchReport, variant: VariantReport, comparison: Comparison) -> str:
    if lost(variant):
        return "amber"
    if variant is kept(report):
        return "kept"
    return {"faster": "step", "slower": "worse"}.get(comparison.verdict, "soft")
