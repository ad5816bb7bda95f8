"""Make the cells of a report's table: which figure, against what, and which direction is better.

A figure that is None becomes "n/a" with its reason as a numbered footnote, and only a change beyond
the noise has a colour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tfopt.report import format as fmt
from tfopt.report.footprint import Comparison
from tfopt.report.strict import Status

Tone = Literal["better", "worse", "plain"]


@dataclass(frozen=True)
class Cell:
    """One figure as text, with a second one that belongs to it, and a verdict on both.

    ``tone`` is that of the second figure and the verdict, and of the first where it stands alone.
    """

    text: str
    detail: str = ""
    tone: Tone = "plain"
    footnote: int | None = None
    reason: str = ""
    badge: str = ""


class Footnotes:
    """The reasons of a table, numbered in the order in which they first appear."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, reason: str) -> int:
        """Return the number of the footnote with this reason."""
        return self._numbers.setdefault(reason, len(self._numbers) + 1)

    def numbered(self, cell: Cell) -> Cell:
        """Return the cell with the footnote of its reason, if it has one."""
        return replace(cell, footnote=self.number(cell.reason)) if cell.reason else cell

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all reasons; the first is footnote 1."""
        return tuple(self._numbers)


def absent(reason: str) -> Cell:
    """Return the cell of a figure that is not there."""
    return Cell(fmt.NOT_AVAILABLE, reason=fmt.one_line(reason))


@dataclass(frozen=True)
class Column:
    """A column: its title with the unit, what stands second in its cells, and how one is made."""

    title: str
    detail: str
    make: Callable[..., Cell]

    @property
    def heading(self) -> str:
        """Return the title and what stands in parentheses in the cells."""
        return f"{self.title} ({self.detail})" if self.detail else self.title


@dataclass(frozen=True)
class TableRow:
    """A row of the table: its cells, or what became of it where it has none."""

    name: str
    status: Status
    kept: bool
    cells: tuple[Cell, ...]
    story: tuple[str, ...]
    """Why it was not measured, and what its transform did."""

    @property
    def measured(self) -> bool:
        """Return whether the row has figures."""
        return self.status == "measured"

    @property
    def status_text(self) -> str:
        """Return the status in words."""
        return self.status.replace("_", " ")


LEAST_CHANGE = 0.03
"""Smaller relative changes are no change."""


def is_change(ratio: float) -> bool:
    """Return whether a ratio of two figures is worth a word."""
    return abs(ratio - 1) > LEAST_CHANGE


def size_tone(shrink: float | None) -> Tone:
    """Return whether a size is better or worse; a small change is none to speak of."""
    if shrink is None or not is_change(shrink):
        return "plain"
    return "better" if shrink > 1 else "worse"


def verdict_tone(comparison: Comparison) -> Tone:
    """Return whether a time is better or worse, where its interval allows a verdict."""
    tones: dict[str, Tone] = {"faster": "better", "slower": "worse"}
    return tones.get(comparison.verdict, "plain")
