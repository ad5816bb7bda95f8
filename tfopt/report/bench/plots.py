"""Draw the plots of a bench report: roofline and memory.

Every plot is there, drawn or with the reason why not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from tfopt.report import format as fmt
from tfopt.report.bench.bench_figures import kept, peak
from tfopt.report.bench.bench_report import BenchReport, Ceilings, Roofline, VariantReport
from tfopt.report.bench.canvas import (
    COLOURS,
    SIZE,
    Plot,
    absent,
    axes_of,
    drawing,
    rows,
    shortened,
    strip,
    written,
)
from tfopt.report.bench.time_plots import (
    drift,
    first_reason,
    label_row,
    phases,
    speeds,
    split,
    training_speeds,
    windows,
)

_HEIGHT = 270
_LEFT = 52
_COLOURS = ("one", "two", "three", "four")
_GIB_IN_GB = 2**30 / 1e9
_NAME_ROOM = 120
_LINE = 14
_BESIDE = 16


def roofline(report: BenchReport) -> Plot:
    """Draw speed over intensity, with the ceilings."""
    key, title = "roofline", "Roofline"
    shown = [(variant, variant.roofline) for variant in report.measured]
    found = [(variant, roof) for variant, roof in shown if roof is not None]
    if not found:
        return absent(key, title, first_reason(report, "roofline"))
    ceilings = tuple(dict.fromkeys(roof.ceilings for _, roof in found))
    colours = {each: _COLOURS[n % len(_COLOURS)] for n, each in enumerate(ceilings)}
    with drawing():
        figure, axes = axes_of(_HEIGHT, _LEFT)
        _scales(axes, [roof for _, roof in found], ceilings)
        for each in ceilings:
            _roof(axes, each, COLOURS[colours[each]])
        _points(axes, report, found, colours)
        svg = written(figure, key, f"{title}. {_in_words(found)}")
    caption = (
        "A point below its roof leaves speed unused: the slope is what memory allows, the level "
        "what arithmetic does."
    )
    legend = tuple(
        (
            colours[each],
            f"{fmt.one_line(each.device)}, {fmt.one_line(each.dtype)}: {fmt.quantity(each.gflops)} "
            f"GFLOP/s, {fmt.quantity(each.copy_gib_per_s)} GiB/s",
        )
        for each in ceilings
    )
    return Plot(key, title, caption, legend, svg, "")


def _scales(axes: Any, roofs: list[Roofline], ceilings: tuple[Ceilings, ...]) -> None:
    ridges = [each.gflops / (each.copy_gib_per_s * _GIB_IN_GB) for each in ceilings]
    across = [*ridges, *(roof.intensity for roof in roofs)]
    up = [*(each.gflops for each in ceilings), *(roof.gflops for roof in roofs)]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(across) / 3, max(across) * 4)
    axes.set_ylim(min(up) / 3, max(up) * 2)
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(FixedLocator(_decades(*limits)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.grid(color=COLOURS["line"], linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("FLOP a byte", color=COLOURS["soft"], fontsize=SIZE, labelpad=2)
    style = {"color": COLOURS["soft"], "fontsize": SIZE, "transform": axes.transAxes}
    axes.text(0.01, 0.975, "GFLOP/s", va="top", parse_math=False, **style)


def _decades(low: float, high: float) -> list[float]:
    """Return powers of ten inside, or 1, 2 and 5 times these where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    tens = [10.0**power for power in range(first, last + 1)]
    ticks = [tick for tick in tens if low <= tick <= high / 1.15]
    if len(ticks) >= 3:
        return ticks
    finer = [factor * tick for tick in tens for factor in (1, 2, 5)]
    return [tick for tick in finer if low <= tick <= high / 1.15]


def _short(value: float) -> str:
    """Return the text of a tick: 0.5, 100, 10k, 1M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _roof(axes: Any, ceilings: Ceilings, colour: str) -> None:
    low, high = axes.get_xlim()
    slope = ceilings.copy_gib_per_s * _GIB_IN_GB
    ridge = ceilings.gflops / slope
    corners = [(low, low * slope), (ridge, ceilings.gflops), (high, ceilings.gflops)]
    across, up = zip(*corners, strict=True)
    axes.plot(across, up, color=colour, linewidth=2)


def _points(
    axes: Any,
    report: BenchReport,
    found: list[tuple[VariantReport, Roofline]],
    colours: dict[Ceilings, str],
) -> None:
    """Draw points with their names beside them, each on a separate line."""
    placed = sorted(found, key=lambda pair: pair[1].gflops)
    low, high = map(math.log10, axes.get_ylim())
    heights = [(math.log10(roof.gflops) - low) / (high - low) * _HEIGHT for _, roof in placed]
    middle = math.sqrt(math.prod(axes.get_xlim()))
    for (variant, roof), y, line in zip(placed, heights, _apart(heights), strict=True):
        bold = variant is kept(report)
        before = roof.intensity > middle
        axes.plot(
            roof.intensity,
            roof.gflops,
            "o",
            markersize=8,
            color=COLOURS["kept" if bold else colours[roof.ceilings]],
            markeredgewidth=1.2,
            markeredgecolor=COLOURS["card"],
        )
        axes.annotate(
            shortened(fmt.one_line(variant.name), _NAME_ROOM, "bold"),
            (roof.intensity, roof.gflops),
            xytext=(-_BESIDE if before else _BESIDE, line - y),
            textcoords="offset points",
            ha="right" if before else "left",
            va="center",
            color=COLOURS["ink"],
            fontsize=SIZE,
            fontweight="bold" if bold else "normal",
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "color": COLOURS["soft"],
                "linewidth": 0.6,
                "shrinkA": 1,
                "shrinkB": 4,
                "relpos": (1 if before else 0, 0.5),
            },
        )


def _apart(heights: list[float]) -> list[float]:
    """Return heights in rising order, moved until each has a line of text to itself."""
    up: list[float] = []
    for height in heights:
        up.append(max(height, up[-1] + _LINE if up else _LINE))
    down: list[float] = []
    for height in reversed(heights):
        down.append(min(height, down[-1] - _LINE if down else _HEIGHT - _LINE))
    # Both keep the distance, so what lies between them does.
    return [(one + other) / 2 for one, other in zip(up, reversed(down), strict=True)]


def _in_words(found: list[tuple[VariantReport, Roofline]]) -> str:
    return "; ".join(
        f"{fmt.one_line(variant.name)} {fmt.quantity(roof.gflops)} GFLOP/s"
        for variant, roof in found
    )


_BAR_HEIGHT = 38
_MAIN = "gpu_allocator_peak_mib"
_GPU_PEAKS = (
    ("nvml_device_peak_mib", "line", 0.95, "on the device, all processes (driver)"),
    ("nvml_process_peak_mib", "base", 0.72, "held by this process (driver)"),
    ("gpu_allocator_peak_mib", "step", 0.5, "handed out by TensorFlow"),
    ("gpu_steady_peak_mib", "ink", 0.16, "handed out in the steady state"),
)


def host_peaks(report: BenchReport) -> Plot:
    """Draw the most that a process held."""
    layers = (("host_peak_mib", "step", 0.74, "resident in memory"),)
    return _peaks(report, "host-peaks", "Host memory, peak", layers)


def gpu_peaks(report: BenchReport) -> Plot:
    """Draw the most that TensorFlow handed out, and what the driver says."""
    return _peaks(report, "gpu-peaks", "GPU memory, peak", _GPU_PEAKS)


def _peaks(
    report: BenchReport, key: str, title: str, layers: tuple[tuple[str, str, float, str], ...]
) -> Plot:
    shown = report.measured
    found = {name: [peak(variant, name) for variant in shown] for name, *_ in layers}
    highest = max(
        (p.mib for peaks in found.values() for p in peaks if p.mib is not None), default=0
    )
    if not highest:
        whys = [p.why for peaks in found.values() for p in peaks if p.why]
        return absent(key, title, whys[0] if whys else "no variant was measured")
    used = [layer for layer in layers if any(p.mib is not None for p in found[layer[0]])]
    main = next((layer for layer in used if layer[0] == _MAIN), used[-1])
    with drawing():
        figure, axes = rows(len(shown), (0.0, 1.06 * highest), "MiB", _BAR_HEIGHT)
        for number, variant in enumerate(shown):
            for name, colour, thick, _ in used:
                _bar(axes, number, found[name][number].mib, colour, thick)
            value = found[main[0]][number].mib
            text = fmt.NOT_AVAILABLE if value is None else f"{fmt.quantity(value)} MiB"
            label_row(axes, number, report, variant, text, _BAR_HEIGHT)
        svg = written(figure, key, title)
    legend = tuple((colour, text) for _, colour, _, text in used)
    caption = f"The highest over the blocks. The figure is what was {main[3]}."
    return Plot(key, title, caption, legend if len(used) > 1 else (), svg, "")


def _bar(axes: Any, number: int, value: float | None, colour: str, thick: float) -> None:
    if value is None:
        return
    top, bottom = strip(number, _BAR_HEIGHT)
    axes.barh((top + bottom) / 2, value, (bottom - top) * thick, color=COLOURS[colour], linewidth=0)


@dataclass(frozen=True)
class Room:
    """Plots under one heading."""

    title: str
    drawn: tuple[Plot, ...]
    missing: tuple[tuple[str, str], ...]
    """Titles of those that could not be drawn, and the reason that they share."""


def gallery_of(report: BenchReport) -> tuple[Room, ...]:
    """Draw everything; what cannot be drawn stands with its reason at the end of its room."""
    return (
        _room("Before and after", *training_speeds(report), speeds(report), windows(report)),
        _room(
            "Where the time goes", split(report), phases(report), roofline(report), drift(report)
        ),
        _room("Memory and GPU", host_peaks(report), gpu_peaks(report)),
    )


def _room(title: str, *plots: Plot) -> Room:
    drawn = tuple(plot for plot in plots if plot.svg)
    titles: dict[str, list[str]] = {}
    for plot in plots:
        if not plot.svg:
            titles.setdefault(plot.reason, []).append(plot.title)
    missing = tuple((", ".join(those), reason) for reason, those in titles.items())
    return Room(title, drawn, missing)
