"""What a time is made of, as stacked bars: the phases of a block, the parts of a step.

Guarantees: a part is the figure of the report, a total is their sum; no bar for what has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfopt.report import format as fmt
from tfopt.report.bench import words
from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.figures import PHASES, kept, phase_s
from tfopt.report.bench.plots.canvas import (
    INNER,
    SIZE,
    Plot,
    absent,
    drawing,
    name_row,
    rows,
    strip,
    width,
    written,
)
from tfopt.report.bench.plots.svg import COLOURS
from tfopt.report.bench.variant import VariantReport

_HEIGHT = 38
_PHASES = ("start", "build", "first step", "warm-up")
_PARTS = ("input", "host", "device")
_COLOURS = ("one", "two", "three", "four")
# A label needs so much of the drawing's width beside its own.
_SPARE = 6


def phases(report: BenchReport) -> Plot:
    """What passes before the steady state."""
    key, title = "phases", "Before the steady state"
    shown = report.measured
    if not shown:
        return absent(key, title, "no variant was measured")
    values = [[phase_s(variant, name) for name in PHASES] for variant in shown]
    longest = max(sum(parts) for parts in values) or 1.0
    with drawing():
        figure, axes = rows(len(shown), (0.0, 1.04 * longest), "seconds", _HEIGHT)
        for number, (variant, parts) in enumerate(zip(shown, values, strict=True)):
            told = f"{fmt.quantity(sum(parts))} s"
            _stack(axes, number, parts, ["" for _ in parts])
            _name(axes, number, report, variant, told)
        svg = written(figure, key, title)
    legend = tuple(zip(_COLOURS, _PHASES, strict=True))
    return Plot(key, title, "Medians over the blocks.", legend, svg, "")


def split(report: BenchReport) -> Plot:
    """Where the time of a step goes."""
    key, title = "split", "Where a step's time goes"
    shown = [variant for variant in report.measured if variant.split is not None]
    if not shown:
        reasons = [variant.unavailable["split"] for variant in report.measured]
        return absent(key, title, reasons[0] if reasons else "no variant was measured")
    with drawing():
        figure, axes = rows(len(shown), (0.0, 104.0), "% of the step", _HEIGHT)
        for number, variant in enumerate(shown):
            _split(axes, number, report, variant)
        svg = written(figure, key, title)
    missing = [fmt.one_line(v.name) for v in report.measured if v.split is None]
    told = "The step of fit, and what binds it."
    if missing:
        told += f" Not split: {', '.join(missing)}."
    legend = tuple(zip(_COLOURS, _PARTS, strict=False))
    return Plot(key, title, told, legend, svg, "")


def _split(axes: Any, number: int, report: BenchReport, variant: VariantReport) -> None:
    found = variant.split
    if found is None:
        return
    shares = (found.input_share, found.host_share, found.device_share)
    _stack(axes, number, [100 * share for share in shares], [words.percent(s) for s in shares])
    bound = "nothing binds alone" if found.bound == "nothing alone" else f"{found.bound} binds"
    _name(axes, number, report, variant, f"{words.duration(found.fit_ms)}, {bound}")


def _name(axes: Any, number: int, report: BenchReport, variant: VariantReport, told: str) -> None:
    bold = variant is kept(report)
    name_row(axes, number, (fmt.one_line(variant.name), told), bold=bold, height=_HEIGHT)


def _stack(axes: Any, number: int, parts: Sequence[float], labels: Sequence[str]) -> None:
    top, bottom = strip(number, _HEIGHT)
    middle, thick = (top + bottom) / 2, bottom - top
    begun = 0.0
    scale = INNER / axes.get_xlim()[1]
    for part, label, colour in zip(parts, labels, _COLOURS, strict=False):
        axes.barh(
            middle, part, thick * 0.92, left=begun, color=COLOURS[colour],
            edgecolor=COLOURS["card"], linewidth=1,
        )  # fmt: skip
        if label and part * scale > width(label) + _SPARE:
            axes.text(
                begun + part / 2, middle, label, ha="center", va="center_baseline",
                color=COLOURS["card"], fontsize=SIZE, fontweight="bold", parse_math=False,
            )  # fmt: skip
        begun += part
