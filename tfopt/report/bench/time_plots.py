"""Draw times: each variant against the reference, its windows, its blocks over the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfopt.report import format as fmt
from tfopt.report.bench.bench_figures import PHASES, kept, lost, one_batch, phase_s, trained_whole
from tfopt.report.bench.bench_report import BenchReport, VariantReport
from tfopt.report.bench.canvas import (
    COLOURS,
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
from tfopt.report.footprint import SAME_WITHIN, Comparison

_HEIGHT = 38
_PHASES = ("start", "build", "first step", "warm-up")
_PARTS = ("input", "host", "device")
_COLOURS = ("one", "two", "three", "four")
# A label needs so much of the drawing's width beside its own.
_SPARE = 6


def phases(report: BenchReport) -> Plot:
    """Draw what passes before the steady state."""
    key, title = "phases", "Before the steady state"
    shown = report.measured
    if not shown:
        return absent(key, title, "no variant was measured")
    values = [[phase_s(variant, name) for name in PHASES] for variant in shown]
    longest = max(sum(parts) for parts in values) or 1.0
    with drawing():
        figure, axes = rows(len(shown), (0.0, 1.04 * longest), "seconds", _HEIGHT)
        for number, (variant, parts) in enumerate(zip(shown, values, strict=True)):
            _stack(axes, number, parts, ["" for _ in parts])
            label_row(axes, number, report, variant, f"{fmt.quantity(sum(parts))} s")
        svg = written(figure, key, title)
    legend = tuple(zip(_COLOURS, _PHASES, strict=True))
    return Plot(key, title, "Medians over the blocks.", legend, svg, "")


def split(report: BenchReport) -> Plot:
    """Draw where the time of a step goes."""
    key, title = "split", "Where a step's time goes"
    shown = [variant for variant in report.measured if variant.split is not None]
    if not shown:
        return absent(key, title, first_reason(report, "split"))
    with drawing():
        figure, axes = rows(len(shown), (0.0, 104.0), "% of the step", _HEIGHT)
        for number, variant in enumerate(shown):
            _split(axes, number, report, variant)
        svg = written(figure, key, title)
    missing = [fmt.one_line(v.name) for v in report.measured if v.split is None]
    caption = "The step of fit, and what binds it."
    if missing:
        caption += f" Not split: {', '.join(missing)}."
    legend = tuple(zip(_COLOURS, _PARTS, strict=False))
    return Plot(key, title, caption, legend, svg, "")


def _split(axes: Any, number: int, report: BenchReport, variant: VariantReport) -> None:
    found = variant.split
    if found is None:
        return
    shares = (found.input_share, found.host_share, found.device_share)
    _stack(axes, number, [100 * share for share in shares], [fmt.percent(s) for s in shares])
    bound = "nothing binds alone" if found.bound == "nothing alone" else f"{found.bound} binds"
    label_row(axes, number, report, variant, f"{fmt.duration(found.fit_ms)}, {bound}")


def label_row(
    axes: Any,
    number: int,
    report: BenchReport,
    variant: VariantReport,
    value: str,
    height: float = _HEIGHT,
) -> None:
    """Write a variant's name and its figure above its bar, bold for the kept chain."""
    bold = variant is kept(report)
    name_row(axes, number, (fmt.one_line(variant.name), value), bold=bold, height=height)


def first_reason(report: BenchReport, name: str) -> str:
    """Return why ``name`` is missing in the first variant that was measured."""
    reasons = [variant.unavailable[name] for variant in report.measured]
    return reasons[0] if reasons else "no variant was measured"


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


_TALL = 52
_KINDS = {
    "base": "reference",
    "kept": "kept chain",
    "step": "faster",
    "worse": "slower",
    "amber": "quality lost",
    "soft": "no difference or inconclusive",
}


def speeds(report: BenchReport) -> Plot:
    """Draw the speed of a step, by the example."""
    return _speeds(report, "speeds", "Speed of a step", "against_reference")


def training_speeds(report: BenchReport) -> tuple[Plot, ...]:
    """Draw the speed to the reference's accuracy and that of whole trainings, where there are."""
    if not trained_whole(report):
        return ()
    return (
        _speeds(report, "to-accuracy", "Speed to the reference's test accuracy", "to_accuracy"),
        _speeds(report, "whole", "Speed of whole trainings at equal epochs", "whole"),
    )


def _speeds(report: BenchReport, key: str, title: str, name: str) -> Plot:
    """Draw a point for each variant that was compared, with its interval; the reference is at 1."""
    found = {
        variant.name: comparison
        for variant in report.measured
        if (comparison := getattr(variant, name)) is not None
    }
    if not found:
        return absent(key, title, _uncompared(report, name))
    shown = [v for v in report.measured if v is report.reference or v.name in found]
    used = {_kind(report, variant, name): None for variant in shown}
    ends = [end for each in found.values() for end in (1 / each.high, 1 / each.low)]
    low, high = min(1 - SAME_WITHIN, *ends), max(1 + SAME_WITHIN, *ends)
    margin = 0.06 * (high - low)
    with drawing():
        limits = (max(0.0, low - margin), high + margin)
        axis = "times as fast as the reference"
        figure, axes = rows(len(shown), limits, axis, _HEIGHT)
        axes.axvspan(1 - SAME_WITHIN, 1 + SAME_WITHIN, color=COLOURS["line"], linewidth=0)
        axes.axvline(1, color=COLOURS["base"], linewidth=1)
        for number, variant in enumerate(shown):
            _speed(axes, number, report, variant, name)
        words = (f"{fmt.one_line(n)} {fmt.speed_and_interval(each)}" for n, each in found.items())
        svg = written(figure, key, f"{title}. {'; '.join(words)}")
    missing = [fmt.one_line(v.name) for v in report.measured if v not in shown]
    caption = (
        "Further to the right is faster. The line is the 95 % interval; the band is the reference "
        f"\N{PLUS-MINUS SIGN}{fmt.percent(SAME_WITHIN)}."
    )
    if missing:
        caption += f" Not compared: {', '.join(missing)}."
    return Plot(key, title, caption, tuple((each, _KINDS[each]) for each in used), svg, "")


def _uncompared(report: BenchReport, name: str) -> str:
    others = [variant for variant in report.measured if variant is not report.reference]
    if not others:
        return "only one variant was measured: there is nothing to compare it with"
    return others[0].unavailable[name]


def _kind(report: BenchReport, variant: VariantReport, name: str) -> str:
    comparison = getattr(variant, name)
    if comparison is None:
        return "base"
    if lost(variant):
        return "amber"
    if variant is kept(report):
        return "kept"
    return {"faster": "step", "slower": "worse"}.get(comparison.verdict, "soft")


def _speed(axes: Any, number: int, report: BenchReport, variant: VariantReport, name: str) -> None:
    comparison: Comparison | None = getattr(variant, name)
    top, bottom = strip(number, _HEIGHT)
    middle, colour = (top + bottom) / 2, COLOURS[_kind(report, variant, name)]
    text, speed, reach = "1", 1.0, None
    if comparison is not None:
        text, speed = fmt.speed_and_interval(comparison), 1 / comparison.ratio
        # An estimate may lie at an end of its interval, and float arithmetic a little beyond.
        below, above = speed - 1 / comparison.high, 1 / comparison.low - speed
        reach = ((max(below, 0.0),), (max(above, 0.0),))
    axes.errorbar(
        speed, middle, xerr=reach, fmt="o", markersize=7, color=colour, ecolor=COLOURS["ink"],
        elinewidth=1.4, capsize=3, capthick=1.4, markeredgewidth=0,
    )  # fmt: skip
    label_row(axes, number, report, variant, text)


def windows(report: BenchReport) -> Plot:
    """Draw how the windows spread, and how far apart the blocks are."""
    key = "windows"
    by_example = not one_batch(report)
    title = "Windows: time an example" if by_example else "Windows: step time"
    if by_example and any(variant.batch_size is None for variant in report.measured):
        return absent(key, title, "step times of different batches, and one of them is not known")
    if not report.measured:
        return absent(key, title, "no variant was measured")
    found = [_spread(variant, by_example=by_example) for variant in report.measured]
    unit = "ms"
    if max(spread.max() for spread in found) < 1:
        found, unit = [spread * 1000 for spread in found], "\N{MICRO SIGN}s"
    low, high = min(spread.min() for spread in found), max(spread.max() for spread in found)
    margin = 0.06 * (high - low)
    with drawing():
        limits = (max(0.0, low - margin), high + margin)
        figure, axes = rows(len(found), limits, f"{title.partition(': ')[2]}, {unit}", _HEIGHT)
        for number, (variant, spread) in enumerate(zip(report.measured, found, strict=True)):
            _box(axes, number, spread)
            value = f"{fmt.quantity(float(spread[2]))} {unit}"
            label_row(axes, number, report, variant, value)
        svg = written(figure, key, title)
    caption = (
        "Box: the middle half, with the median; line: 5th to 95th percentile; "
        "dots: the medians of the blocks, the first round at the top."
    )
    return Plot(key, title, caption, (), svg, "")


def _spread(variant: VariantReport, *, by_example: bool) -> Any:
    """Return five percentiles, then the median of each block."""
    over = (variant.examples_per_step or 1) if by_example else 1
    percentiles = np.percentile(variant.windows_ms, (5, 25, 50, 75, 95))
    return np.array([*percentiles, *(block.step_ms for block in variant.valid)]) / over


def _box(axes: Any, number: int, spread: Any) -> None:
    low, quarter, median, three_quarters, high, *blocks = spread
    top, bottom = strip(number, _HEIGHT)
    middle, thick = (top + bottom) / 2, bottom - top
    axes.plot((low, high), (middle, middle), color=COLOURS["step"], linewidth=1.2)
    axes.barh(
        middle, three_quarters - quarter, thick * 0.8, left=quarter, color=COLOURS["step"],
        linewidth=0, alpha=0.45,
    )  # fmt: skip
    axes.vlines(median, top + thick * 0.1, bottom - thick * 0.1, COLOURS["step"], linewidth=2.2)
    places = np.linspace(top, bottom, len(blocks)) if len(blocks) > 1 else [middle]
    axes.plot(blocks, places, "o", markersize=2.6, color=COLOURS["ink"], markeredgewidth=0)


def drift(report: BenchReport) -> Plot:
    """Draw the block medians in the order of the rounds, around the variant's own level."""
    key, title = "drift", "Blocks in the order of the rounds"
    shown = [variant for variant in report.measured if len(variant.blocks) > 1]
    if not shown:
        return absent(key, title, "a drift needs two blocks of a variant")
    series = [_around(variant) for variant in shown]
    counted = (
        abs(value)
        for variant, values in zip(shown, series, strict=True)
        for value, block in zip(values, variant.blocks, strict=True)
        if block.invalid is None
    )
    reach = max(SAME_WITHIN, *counted) * 1.05
    longest = 1 + max(block.round for variant in shown for block in variant.blocks)
    with drawing():
        figure, axes = rows(len(shown), (0.5, longest + 0.5), "round", _TALL, whole=True)
        for number, (variant, values) in enumerate(zip(shown, series, strict=True)):
            inside = [max(-1.0, min(1.0, value / reach)) for value in values]
            _track(axes, number, variant, inside, longest)
            steady = variant.steadiness
            change = steady.drift if steady else None
            text = fmt.NOT_AVAILABLE if change is None else fmt.signed_percent(change)
            name_row(axes, number, (fmt.one_line(variant.name), text), bold=False, height=_TALL)
        svg = written(figure, key, title)
    caption = (
        f"Up is slower; a row reaches {fmt.percent(reach)} above and below the variant's own "
        "median. The figure is the change along a line from the first to the last."
    )
    invalid = any(block.invalid for variant in shown for block in variant.blocks)
    off = "invalid, not counted; at the edge where it lies beyond"
    legend = (("step", "counted"), ("worse", off)) if invalid else ()
    return Plot(key, title, caption, legend, svg, "")


def _around(variant: VariantReport) -> list[float]:
    level = statistics.median(block.step_ms for block in variant.valid)
    return [block.step_ms / level - 1 for block in variant.blocks]


def _track(
    axes: Any, number: int, variant: VariantReport, values: list[float], longest: int
) -> None:
    top, bottom = strip(number, _TALL)
    middle, half = (top + bottom) / 2, (bottom - top) / 2
    rounds = [block.round + 1 for block in variant.blocks]
    axes.plot((0.5, longest + 0.5), (middle, middle), color=COLOURS["line"], linewidth=1)
    places = [middle - half * value for value in values]
    counted = [n for n, block in enumerate(variant.blocks) if block.invalid is None]
    axes.plot(
        [rounds[n] for n in counted], [places[n] for n in counted], "o-", markersize=4,
        color=COLOURS["step"], linewidth=1.2, markeredgewidth=0,
    )  # fmt: skip
    others = [n for n in range(len(values)) if n not in counted]
    axes.plot(
        [rounds[n] for n in others], [places[n] for n in others], "x", markersize=6,
        color=COLOURS["worse"], markeredgewidth=1.6, clip_on=False,
    )  # fmt: skip
