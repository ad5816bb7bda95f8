"""Render tables as an HTML fragment, which a notebook shows for a result.

It has no script, its styles are its own, and its colours are mixed with those of the notebook's
text, so that it reads on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from tfopt.report.html import template
from tfopt.report.table import Table

_WIDTH, _HEIGHT = 160, 24
_POINTS = 160


def as_fragment(title: str, *tables: Table, lines: Iterable[str] = (), code: str = "") -> str:
    """Return a title, lines of text, code and tables as HTML; empty lines are left out.

    Example:
        >>> table = Table((Column("KiB"),), (Row("litert", (Cell("12.5"),)),))
        >>> html = as_fragment("digits", table)
    """
    return template("notebook.html.j2").render(
        title=title, tables=tables, lines=[*filter(None, lines)], code=code, points=_points
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
