"""Memory and what a GPU did, as plots: peaks side by side, and samples over the first block.

Guarantees: a row is the first valid block of its variant; all rows of a plot have one scale, from
zero; where nothing was sampled the plot is its reason.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfopt.report import format as fmt
from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.figures import kept, peak
from tfopt.report.bench.plots.canvas import (
    Plot,
    absent,
    drawing,
    name_row,
    rows,
    strip,
    thinned,
    written,
)
from tfopt.report.bench.plots.svg import COLOURS
from tfopt.report.bench.variant import VariantReport

_HEIGHT = 38
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
    """The most that a process held."""
    layers = (("host_peak_mib", "step", 0.74, "resident in memory"),)
    return _peaks(report, "host-peaks", "Host memory, peak", layers)


def gpu_peaks(report: BenchReport) -> Plot:
    """The most that TensorFlow handed out, and what the driver says."""
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
        figure, axes = rows(len(shown), (0.0, 1.06 * highest), "MiB", _HEIGHT)
        for number, variant in enumerate(shown):
            for name, colour, thick, _ in used:
                _bar(axes, number, found[name][number].mib, colour, thick)
            value = found[main[0]][number].mib
            told = fmt.NOT_AVAILABLE if value is None else f"{fmt.quantity(value)} MiB"
            _name(axes, number, report, variant, told, _HEIGHT)
        svg = written(figure, key, title)
    legend = tuple((colour, told) for _, colour, _, told in used)
    told = f"The highest over the blocks. The figure is what was {main[3]}."
    return Plot(key, title, told, legend if len(used) > 1 else (), svg, "")


def _bar(axes: Any, number: int, value: float | None, colour: str, thick: float) -> None:
    if value is None:
        return
    top, bottom = strip(number, _HEIGHT)
    axes.barh((top + bottom) / 2, value, (bottom - top) * thick, color=COLOURS[colour], linewidth=0)


def timelines(report: BenchReport) -> tuple[Plot, ...]:
    """One plot for each thing that was sampled."""
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
            told = f"{fmt.quantity(float(values.max()))} {unit} at most"
            _name(axes, number, report, variant, told, _TALL)
        svg = written(figure, key, title)
    told = (
        "The first valid block of each variant. "
        f"Every row reaches from 0 to {fmt.quantity(highest)} {unit}."
    )
    return Plot(key, title, told, (), svg, "")


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


def _name(
    axes: Any, number: int, report: BenchReport, variant: VariantReport, told: str, height: float
) -> None:
    bold = variant is kept(report)
    name_row(axes, number, (fmt.one_line(variant.name), told), bold=bold, height=height)
