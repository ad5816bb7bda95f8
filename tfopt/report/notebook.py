"""Render tables as an HTML fragment, which a notebook shows for a result.

It has no script, its styles are its own, and its colours are mixed with those of the notebook's
text, so that it reads on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tfopt.report import format as fmt
from tfopt.report.bench_figures import kept
from tfopt.report.bench_report import BenchReport
from tfopt.report.html import template
from tfopt.report.statistics import Comparison
from tfopt.report.table import Table

_WIDTH, _HEIGHT = 160, 24
_POINTS = 160


@dataclass(frozen=True)
class Speed:
    """A variant's speed by the example, as a bar: that of the reference is 1.

    Attributes:
        comparison: Of the time of an example; None for the reference.
    """

    name: str
    comparison: Comparison | None
    kept: bool

    @property
    def speed(self) -> float:
        """Return how many times as fast as the reference it is."""
        return 1.0 if self.comparison is None else 1 / self.comparison.ratio

    @property
    def text(self) -> str:
        """Return the speed, with its interval where it has one."""
        found = self.comparison
        return fmt.factor(self.speed) if found is None else fmt.speed_and_interval(found)

    @property
    def right_edge(self) -> float:
        """Return where its drawing ends."""
        return self.speed if self.comparison is None else max(self.speed, 1 / self.comparison.low)


def speeds(report: BenchReport) -> tuple[Speed, ...]:
    """Return the speed of each variant that was compared; none where it would be one alone."""
    own = kept(report)
    drawn = [
        Speed(fmt.one_line(each.name), each.against_reference, each is own)
        for each in report.measured
        if each is report.reference or each.against_reference is not None
    ]
    return tuple(drawn) if len(drawn) > 1 else ()


def as_fragment(
    title: str,
    *tables: Table,
    lines: Iterable[str] = (),
    code: str = "",
    speeds: Sequence[Speed] = (),
    notes: Iterable[str] = (),
) -> str:
    """Return a title, lines of text, code, bars, tables and notes as HTML; no empty lines.

    Example:
        >>> table = Table((Column("KiB"),), (Row("litert", (Cell("12.5"),)),))
        >>> html = as_fragment("digits", table)
    """
    return template("notebook.html.j2").render(
        title=title,
        tables=tables,
        lines=[*filter(None, lines)],
        code=code,
        speeds=speeds,
        notes=notes,
        longest=max((each.right_edge for each in speeds), default=1.0),
        points=_points,
    )


def _points(values: Sequence[float]) -> str:
    """Return a curve from 0 to the highest value, each point the mean of neighbours."""
    size = -(-len(values) // _POINTS)
    means = [fmean(values[start : start + size]) for start in range(0, len(values), size)]
    low, high = min(0.0, *means), max(0.0, *means)
    across = (_WIDTH - 2) / max(len(means) - 1, 1)
    up = (_HEIGHT - 2) / ((high - low) or 1)
    return " ".join(
        f"{1 + n * across:.1f},{_HEIGHT - 1 - (mean - low) * up:.1f}"
        for n, mean in enumerate(means)
    )
