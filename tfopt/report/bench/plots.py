"""Draw the plots of a bench report: memory and samples over time.

Every plot is there, drawn or with the reason why not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfopt.report import format as fmt
from tfopt.report.bench.bench_figures import peak
from tfopt.report.bench.bench_report import BenchReport, VariantReport
from tfopt.report.bench.canvas import (
    COLOURS,
    Plot,
    absent,
    drawing,
    rows,
    strip,
    thinned,
    written,
)
from tfopt.report.bench.time_plots import (
    drift,
    label_row,
    phases,
    speeds,
    split,
    training_speeds,
    windows,
)

_TIMELINE_HEIGHT = 38
_TALL = 54
_MOST_SAMPLES = 120
_TIMELINES = (
    ("host_mib", "Host memory over time", "MiB"),
    ("gpu_mib", "GPU memory over time", "MiB"),
    ("gpu_utilisation_percent", "GPU utilisation over time", "%"),
    ("gpu_power_w", "GPU power over time", "W"),
    ("gpu_temperature_c", "GPU temperature over time", "\N{DEGREE SIGN}C"),
)
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
        figure, axes = rows(len(shown), (0.0, 1.06 * highest), "MiB", _TIMELINE_HEIGHT)
        for number, variant in enumerate(shown):
            for name, colour, thick, _ in used:
                _bar(axes, number, found[name][number].mib, colour, thick)
            value = found[main[0]][number].mib
            text = fmt.NOT_AVAILABLE if value is None else f"{fmt.quantity(value)} MiB"
            label_row(axes, number, report, variant, text, _TIMELINE_HEIGHT)
        svg = written(figure, key, title)
    legend = tuple((colour, text) for _, colour, _, text in used)
    caption = f"The highest over the blocks. The figure is what was {main[3]}."
    return Plot(key, title, caption, legend if len(used) > 1 else (), svg, "")


def _bar(axes: Any, number: int, value: float | None, colour: str, thick: float) -> None:
    if value is None:
        return
    top, bottom = strip(number, _TIMELINE_HEIGHT)
    axes.barh((top + bottom) / 2, value, (bottom - top) * thick, color=COLOURS[colour], linewidth=0)


def timelines(report: BenchReport) -> tuple[Plot, ...]:
    """Draw a plot for each thing that was sampled."""
    return tuple(_timeline(report, name, title, unit) for name, title, unit in _TIMELINES)


def _timeline(report: BenchReport, name: str, title: str, unit: str) -> Plot:
    key = name.replace("_", "-")
    sampled = [(variant, _samples(variant, name)) for variant in report.measured]
    shown = [(variant, samples) for variant, samples in sampled if samples is not None]
    if not shown:
        return absent(key, title, _why(report, name))
    ends = max(at[-1] for _, (at, _) in shown) or 1.0
    # A percentage is read against all of it, whatever was reached.
    highest = 100.0 if unit == "%" else max(values.max() for _, (_, values) in shown) or 1.0
    with drawing():
        figure, axes = rows(len(shown), (0.0, 1.02 * ends), "seconds of sampling", _TALL)
        for number, (variant, (at, values)) in enumerate(shown):
            _area(axes, number, at, values / highest)
            text = f"{fmt.quantity(float(values.max()))} {unit} at most"
            label_row(axes, number, report, variant, text, _TALL)
        svg = written(figure, key, title)
    caption = (
        "The first valid block of each variant. "
        f"Every row reaches from 0 to {fmt.quantity(highest)} {unit}."
    )
    return Plot(key, title, caption, (), svg, "")


def _samples(variant: VariantReport, name: str) -> tuple[Any, Any] | None:
    for block in variant.valid:
        line = block.timeline
        if line is not None and getattr(line, name):
            values = getattr(line, name)
            chosen = thinned(values, _MOST_SAMPLES)
            return np.array(line.at_s)[chosen], np.array(values)[chosen]
    return None


def _why(report: BenchReport, name: str) -> str:
    if name != "host_mib" and report.provenance.no_gpu_reason:
        return report.provenance.no_gpu_reason
    blocks = [block for variant in report.measured for block in variant.valid]
    reasons = [block.unavailable["timeline"] for block in blocks if block.timeline is None]
    return reasons[0] if reasons else "nothing was sampled"


def _area(axes: Any, number: int, at: Any, heights: Any) -> None:
    top, bottom = strip(number, _TALL)
    line = bottom - (bottom - top) * heights
    around = (np.concatenate(([at[0]], at, [at[-1]])), np.concatenate(([bottom], line, [bottom])))
    axes.fill(*around, color=COLOURS["step"], alpha=0.25, linewidth=0)
    axes.plot(at, line, color=COLOURS["step"], linewidth=1.4)
    axes.plot((0, axes.get_xlim()[1]), (bottom, bottom), color=COLOURS["line"], linewidth=0.8)


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
        _room("Where the time goes", split(report), phases(report), drift(report)),
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
