"""Make the cells of a report's table: which figure, against what, and which direction is better.

A figure that is None becomes "n/a" with its reason as a numbered footnote, and only a change beyond
the noise has a colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from tfopt.report import format as fmt
from tfopt.report.statistics import Comparison
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

    @property
    def in_words(self) -> str:
        """Return the figures, the verdict and the number of the footnote, on one line."""
        detail = f"({self.detail})" if self.detail else ""
        footnote = f"[{self.footnote}]" if self.footnote else ""
        return " ".join(filter(None, (self.text, detail, self.badge, footnote)))


def absent(reason: str) -> Cell:
    """Return the cell of a figure that is not there."""
    return Cell(fmt.NOT_AVAILABLE, reason=fmt.one_line(reason))


def figure(value: float | None, reason: str) -> Cell:
    """Return the cell of a figure, or of one that is not there for this reason."""
    return absent(reason) if value is None else Cell(fmt.quantity(value))


def compared(value: float, comparison: Comparison | None) -> Cell:
    """Return the cell of a figure with its speed against the reference, where that is known."""
    if comparison is None:
        return Cell(fmt.quantity(value))
    return Cell(
        fmt.quantity(value),
        fmt.speed_and_interval(comparison),
        verdict_tone(comparison),
        badge=comparison.verdict,
    )


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
class Row:
    """A row of the table: its cells, or what became of it where it has none."""

    name: str
    cells: tuple[Cell, ...]
    status: Status = "measured"
    kept: bool = False
    story: tuple[str, ...] = ()
    """Why it was not measured, and what its transform did."""

    @property
    def measured(self) -> bool:
        """Return whether the row has figures."""
        return self.status == "measured"

    @property
    def status_text(self) -> str:
        """Return the status in words."""
        return self.status.replace("_", " ")


AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass(frozen=True)
class Table(Generic[AnyRow]):
    """A table of figures, as every renderer shows it.

    Attributes:
        caption: What its rows are.
        footnotes: Footnote n is ``footnotes[n - 1]``.
        notes: What else is to be said below it.
    """

    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[AnyRow, ...]
    footnotes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return aligned text: a line for each row, and what is to be said of them."""
        rows = [(row.name, *(cell.in_words for cell in row.cells)) for row in self.rows]
        lines = fmt.table(["", *(column.title for column in self.columns)], rows)
        footnotes = (f"[{n}] {text}" for n, text in enumerate(self.footnotes, start=1))
        return "\n".join([*lines, self.caption, *footnotes, *self.notes])


def table_of(
    columns: Sequence[Column],
    rows: Iterable[AnyRow],
    *,
    title: str = "",
    caption: str = "",
    notes: Sequence[str] = (),
) -> Table[AnyRow]:
    """Return a table whose reasons are numbered in the order in which they first appear."""
    footnotes: dict[str, int] = {}

    def numbered(cell: Cell) -> Cell:
        if not cell.reason:
            return cell
        return replace(cell, footnote=footnotes.setdefault(cell.reason, len(footnotes) + 1))

    with_numbers = tuple(replace(row, cells=tuple(map(numbered, row.cells))) for row in rows)
    return Table(title, caption, tuple(columns), with_numbers, tuple(footnotes), tuple(notes))


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
