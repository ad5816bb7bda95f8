"""Draw the plots of a page as SVG: speeds against the reference, with those of the processes.

A drawing takes its colours from the page's variables and tells its figures to a screen reader. What
was not measured is not drawn: the table says why.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

from rich.cells import cell_len

from tfopt.report import format as fmt
from tfopt.report.bench_figures import TIMES, kept, lost, shared_times
from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.footprint import SAME_WITHIN, Comparison

# On a screen 390 pixels wide no letter is smaller than 9 pixels.
_WIDTH, _SIZE, _ROW, _GAP = 420, 12, 26, 12
_LEAST_INNER = 150
_MOST_TICKS = 5
_TICK_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_KINDS = {
    "kept": "kept chain",
    "step": "faster",
    "worse": "slower",
    "amber": "quality lost",
    "soft": "no difference or inconclusive",
}


@dataclass(frozen=True)
class Plot:
    """One drawing; ``caption`` says how to read it, ``legend`` what a colour stands for."""

    key: str
    title: str
    caption: str
    legend: tuple[tuple[str, str], ...]
    svg: str


def plots_of(report: BenchReport) -> tuple[Plot, ...]:
    """Draw what was compared with the reference, whole trainings first."""
    plots = (
        _speeds(report, "to_accuracy", "Speed to the reference's test accuracy"),
        _speeds(report, "whole", "Speed of whole trainings at equal epochs"),
        _speeds(report, "against_reference", "Speed of an example"),
    )
    return tuple(plot for plot in plots if plot is not None)


def _speeds(report: BenchReport, name: str, title: str) -> Plot | None:
    """Draw a point and its interval for each variant that was compared; the reference is at 1."""
    found = [(v, each) for v in report.measured if (each := getattr(v, name)) is not None]
    if not found:
        return None
    processes = [_of_processes(report, v) if name == TIMES[-1] else () for v, _ in found]
    ends = [1 / end for _, each in found for end in (each.low, each.ratio, each.high)]
    ends += [speed for speeds in processes for speed in speeds]
    low, high = min(1 - SAME_WITHIN, *ends), max(1 + SAME_WITHIN, *ends)
    told = [(v, fmt.speed(each), f" ({fmt.interval(each)})") for v, each in found]
    rows = _Rows(told, kept(report))

    def x(speed: float) -> float:
        return rows.x(0.03 + 0.94 * math.log(speed / low) / math.log(high / low))

    shapes = []
    for left, right, colour in ((1 - SAME_WITHIN, 1 + SAME_WITHIN, "line"), (1, 1, "base")):
        band = f"M{x(left):.1f} 0V{rows.height}H{x(right):.1f}V0Z"
        shapes.append(f'<path d="{band}" style="fill:var(--{colour});stroke:var(--{colour})"/>')
    used = set()
    for number, (variant, each) in enumerate(found):
        y, colour = rows.middle(number), _kind(report, variant, each)
        used.add(colour)
        line = f"M{x(1 / each.high):.1f} {y - 5}v10m0 -5H{x(1 / each.low):.1f}m0 -5v10"
        shapes.append(f'<path d="{line}" style="fill:none;stroke:var(--ink);stroke-width:1.3"/>')
        place = f'cx="{x(1 / each.ratio):.1f}" cy="{y}"'
        shapes.append(f'<circle {place} r="4" style="fill:var(--{colour})"/>')
        dots = "".join(f"M{x(speed):.1f} {y + 7}v4" for speed in processes[number])
        shapes += [f'<path d="{dots}" style="stroke:var(--soft)"/>'] if dots else []
    ticks = [(x(tick), f"{tick:,.4g}") for tick in _ticks(low, high)]
    svg = rows.drawn(title, shapes, ticks, "times as fast as the reference")
    caption = (
        "Further to the right is faster. The line is the 95 % interval; the band is the reference "
        f"\N{PLUS-MINUS SIGN}{fmt.percent(SAME_WITHIN)}."
    )
    if any(processes):
        caption += " The small marks are the processes of the variant."
    shown = [report.reference, *(variant for variant, _ in found)]
    missing = [fmt.one_line(v.name) for v in report.measured if v not in shown]
    if missing:
        caption += f" Not compared: {', '.join(missing)}."
    legend = tuple((colour, text) for colour, text in _KINDS.items() if colour in used)
    return Plot(name.replace("_", "-"), title, caption, legend, svg)


def _of_processes(report: BenchReport, variant: VariantReport) -> tuple[float, ...]:
    """Return the speed of each process beside the reference's processes."""
    base, own = shared_times(report.reference, variant)
    return tuple(statistics.geometric_mean(base) / time for time in own) if base else ()


def _kind(report: BenchReport, variant: VariantReport, comparison: Comparison) -> str:
    if lost(variant):
        return "amber"
    if variant is kept(report):
        return "kept"
    return {"faster": "step", "slower": "worse"}.get(comparison.verdict, "soft")


def _ticks(low: float, high: float) -> list[float]:
    """Return a few numbers in between: of one step where they are near, else powers of two."""
    if high < 3 * low:
        step = next(step for step in _TICK_STEPS if high - low < _MOST_TICKS * step)
        return [round(n * step, 2) for n in range(math.ceil(low / step), int(high / step) + 1)]
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    every = 1 + (last - first) // _MOST_TICKS
    return [2.0**power for power in range(first, last + 1) if power % every == 0]


class _Rows:
    """A drawing's rows: the name of a variant, room for shapes, its figure."""

    def __init__(
        self, told: Sequence[tuple[VariantReport, str, str]], bold: VariantReport | None
    ) -> None:
        self._rows = [(fmt.one_line(v.name), value, more, v is bold) for v, value, more in told]
        self._right = _WIDTH - max(_width(value) for _, value, *_ in self._rows) - _GAP
        names = max(_width(name) for name, *_ in self._rows)
        self._left = min(names + _GAP, self._right - _LEAST_INNER)
        self.height = len(self._rows) * _ROW

    def x(self, share: float) -> float:
        """Return the place of a share of the room for shapes."""
        return self._left + share * (self._right - self._left)

    def middle(self, number: int) -> int:
        """Return the height at which a row's shapes lie."""
        return number * _ROW + _ROW // 2

    def drawn(
        self, title: str, shapes: Iterable[str], ticks: list[tuple[float, str]], unit: str
    ) -> str:
        """Return the drawing, with an axis below the rows."""
        axis = f"M{self.x(0):.1f} {self.height}H{self.x(1):.1f}"
        axis += "".join(f"M{x:.1f} {self.height}v4" for x, _ in ticks)
        parts = [*shapes, f'<path d="{axis}" style="fill:none;stroke:var(--soft)"/>']
        parts += [_text(x, self.height + 16, text, "soft", "middle") for x, text in ticks]
        parts.append(_text(self.x(0.5), self.height + 32, unit, "soft", "middle"))
        for number, (name, value, _, bold) in enumerate(self._rows):
            y, weight = self.middle(number) + 4, ";font-weight:600" if bold else ""
            parts.append(_text(0, y, _cut(name, self._left - _GAP), "ink", "start", weight))
            parts.append(_text(_WIDTH, y, value, "ink" if bold else "soft", "end", weight))
        told = "; ".join(f"{name} {value}{more}" for name, value, more, _ in self._rows)
        opening = f'<svg class="plot" viewBox="0 0 {_WIDTH} {self.height + 38}" role="img"'
        return f'{opening} aria-label="{escape(f"{title}. {told}")}">{"".join(parts)}</svg>'


def _text(x: float, y: float, words: str, colour: str, anchor: str, style: str = "") -> str:
    place = f'text-anchor="{anchor}" x="{x:.1f}" y="{y}" font-size="{_SIZE}"'
    return f'<text {place} style="fill:var(--{colour}){style}">{escape(words)}</text>'


def _cut(text: str, room: float) -> str:
    """Return ``text``, or as much of its beginning as there is room for."""
    if _width(text) <= room:
        return text
    end = "\N{HORIZONTAL ELLIPSIS}"
    length = sum(wide <= room - _width(end) for wide in accumulate(map(_width, text)))
    return text[:length].rstrip() + end


def _width(text: str) -> float:
    """Return about what a line takes in the widest of the common fonts, in bold."""
    return _SIZE * 1.12 * sum(map(_ems, text))


def _ems(character: str) -> float:
    if cell_len(character) > 1:
        return 1.25
    if character in "mwMW@%\N{HORIZONTAL ELLIPSIS}":
        return 1.0
    if character in "ijlftrI.,:;'|!()[] -/":
        return 0.4
    return 0.64 if character.islower() or character.isdigit() else 0.8
