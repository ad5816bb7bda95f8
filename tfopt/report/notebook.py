"""Render tables as an HTML fragment, which a notebook shows for a result.

It has no script, its styles are its own, and its colours are mixed with those of the notebook's
text, so that it reads on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from tfopt.report import format as fmt
from tfopt.report.bench_figures import kept
from tfopt.report.bench_report import BenchReport
from tfopt.report.html import template
from tfopt.report.table import Cell, Row, Table
from tfopt.report.view import view_of

_WIDTH, _HEIGHT = 160, 24
_POINTS = 160


def report_fragment(report: BenchReport, *lines: str, code: str) -> str:
    """Return a report's speeds as bars, its tables and notes, below lines and the chain to keep."""
    view = view_of(report)
    return as_fragment(
        view.title,
        *view.tables,
        lines=(view.warning, *lines),
        code=code,
        speeds=_speeds(report),
        notes=view.notes,
    )


def _speeds(report: BenchReport) -> tuple[Row, ...]:
    """Return a row for each variant that was compared; none where the reference is alone."""
    own, drawn = kept(report), []
    for variant in report.measured:
        found = variant.against_reference
        if found is not None or variant is report.reference:
            text = fmt.factor(1.0) if found is None else fmt.speed_and_interval(found)
            cells = (Cell(text, comparison=found),)
            drawn.append(Row(fmt.one_line(variant.name), cells, kept=variant is own))
    return tuple(drawn) if len(drawn) > 1 else ()


def as_fragment(
    title: str,
    *tables: Table,
    lines: Iterable[str] = (),
    code: str = "",
    speeds: Sequence[Row] = (),
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
        longest=max([1.0, *(1 / c.low for row in speeds if (c := row.cells[0].comparison))]),
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
