"""All plots of a bench report, in the order of a page.

Guarantees: every plot that the report asks for is there, drawn or with the reason why not.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.plots.canvas import Plot
from tfopt.report.bench.plots.memory import gpu_peaks, host_peaks, timelines
from tfopt.report.bench.plots.parts import phases, split
from tfopt.report.bench.plots.roofs import roofline
from tfopt.report.bench.plots.times import drift, ratios, windows


@dataclass(frozen=True)
class Room:
    """Plots under one heading."""

    title: str
    drawn: tuple[Plot, ...]
    missing: tuple[tuple[str, str], ...]
    """Titles of those that could not be drawn, and the reason that they share."""


def gallery_of(report: BenchReport) -> tuple[Room, ...]:
    """Draws everything; what cannot be drawn is told at the end of its room."""
    return (
        _room("Before and after", ratios(report), windows(report)),
        _room(
            "Where the time goes", split(report), phases(report), roofline(report), drift(report)
        ),
        _room("Memory and GPU", host_peaks(report), gpu_peaks(report), *timelines(report)),
    )


def _room(title: str, *plots: Plot) -> Room:
    drawn = tuple(plot for plot in plots if plot.svg)
    titles: dict[str, list[str]] = {}
    for plot in plots:
        if not plot.svg:
            titles.setdefault(plot.reason, []).append(plot.title)
    missing = tuple((", ".join(those), reason) for reason, those in titles.items())
    return Room(title, drawn, missing)
