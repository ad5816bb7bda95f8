"""Hold figures as rows of cells, which every renderer shows.

A figure that is None becomes "n/a" with its reason as a numbered footnote, and only a change beyond
the noise has a colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tfopt.report import format as fmt
from tfopt.report.statistics import Comparison
from tfopt.report.strict import Status

# Smaller relative changes are no change.
_LEAST_CHANGE = 0.03
Tone = Literal["better", "worse", "plain"]
Words = tuple[tuple[str, str], ...]
"""Names, each with what is said of it."""


@dataclass(frozen=True)
class Cell:
    """One figure as text, with a second one that belongs to it, and a verdict on both.

    Attributes:
        tone: Of the second figure and the verdict, and of the first where it stands alone.
        reason: Why a figure is not there.
        comparison: Of times, which a page draws as a bar.
        curve: Values over time, which a notebook draws.
    """

    text: str
    detail: str = ""
    tone: Tone = "plain"
    badge: str = ""
    reason: str = ""
    comparison: Comparison | None = None
    curve: tuple[float, ...] = ()


def absent(reason: str) -> Cell:
    """Return the cell of a figure that is not there."""
    return Cell(fmt.NOT_AVAILABLE, reason=fmt.one_line(reason))


def figure(value: float | None, reason: str) -> Cell:
    """Return the cell of a figure, or of one that is not there for this reason."""
    return absent(reason) if value is None else Cell(fmt.quantity(value))


def compared(text: str, detail: str, comparison: Comparison) -> Cell:
    """Return the cell of a figure that has been compared, with the verdict."""
    tones: dict[str, Tone] = {"faster": "better", "slower": "worse"}
    verdict = comparison.verdict
    return Cell(text, detail, tones.get(verdict, "plain"), verdict, comparison=comparison)


def timed(value: float, comparison: Comparison | None) -> Cell:
    """Return the cell of a figure with its speed against the reference, where that is known."""
    if comparison is None:
        return Cell(fmt.quantity(value))
    return compared(fmt.quantity(value), fmt.speed_and_interval(comparison), comparison)


def speed(comparison: Comparison) -> Cell:
    """Return the cell of a speed with its interval."""
    return compared(fmt.speed(comparison), fmt.interval(comparison), comparison)


@dataclass(frozen=True)
class Column:
    """A column: its title with the unit, what stands second in its cells, and how one is made."""

    title: str
    detail: str = ""
    make: Callable[..., Cell] = Cell

    @property
    def heading(self) -> str:
        """Return the title and what stands in parentheses in the cells."""
        return f"{self.title} ({self.detail})" if self.detail else self.title


@dataclass(frozen=True)
class Row:
    """A row of a table: its cells, or what became of it where it has none.

    Attributes:
        story: Why it was not measured, and what its transform did.
        flags: What a reader must not overlook, each in a few words.
        transform: What it adds to the row before it; ``chain`` is everything in force.
        facts: What was found beside the figures of the table.
    """

    name: str
    cells: tuple[Cell, ...]
    status: Status = "measured"
    kept: bool = False
    story: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    transform: str = ""
    chain: str = ""
    facts: Words = ()

    @property
    def measured(self) -> bool:
        """Return whether the row has figures."""
        return self.status == "measured"

    @property
    def status_text(self) -> str:
        """Return the status in words."""
        return self.status.replace("_", " ")


@dataclass(frozen=True)
class Table:
    """A table of figures.

    Attributes:
        caption: What its rows are.
        notes: What else is to be said below it.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    caption: str = ""
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(
        columns: Sequence[Column], items: Iterable[tuple[str, Any]], kept: str | None = None
    ) -> Table:
        """Return a table with a row for each named item; ``kept`` is the name of the kept one."""
        rows = (
            Row(name, tuple(column.make(item) for column in columns), kept=name == kept)
            for name, item in items
        )
        return Table(tuple(columns), tuple(rows))

    @property
    def footnotes(self) -> tuple[str, ...]:
        """Return the reasons in the order in which they first appear."""
        reasons = (cell.reason for row in self.rows for cell in row.cells if cell.reason)
        return tuple(dict.fromkeys(reasons))

    def footnote(self, cell: Cell) -> int | None:
        """Return the number of a cell's reason, from 1 on."""
        return self.footnotes.index(cell.reason) + 1 if cell.reason else None

    def in_words(self, cell: Cell) -> str:
        """Return a cell's figures, its verdict and the number of its footnote, on one line."""
        detail = f"({cell.detail})" if cell.detail else ""
        footnote = f"[{self.footnote(cell)}]" if cell.reason else ""
        return " ".join(filter(None, (cell.text, detail, cell.badge, footnote)))

    @property
    def told(self) -> list[str]:
        """Return the numbered footnotes and the notes."""
        footnotes = [f"[{n}] {text}" for n, text in enumerate(self.footnotes, start=1)]
        return [*footnotes, *self.notes]

    def __str__(self) -> str:
        """Return aligned text: a line for each row, and what is to be said of them."""
        rows = [(row.name, *map(self.in_words, row.cells)) for row in self.rows]
        lines = fmt.table(["", *(column.title for column in self.columns)], rows)
        return "\n".join([*lines, self.caption, *self.told])


def is_change(ratio: float) -> bool:
    """Return whether a ratio of two figures is worth mentioning."""
    return abs(ratio - 1) > _LEAST_CHANGE
