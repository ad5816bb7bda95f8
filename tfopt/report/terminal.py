"""Render a report for a terminal of any width: as many columns side by side as fit, then the rest.

No figure is cut, and texts are never read as markup. Nothing is printed here: the caller prints it,
to a stream that :func:`print_in_any_encoding` has made safe.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tfopt.report import format as fmt
from tfopt.report.columns import Heading, TableRow

if TYPE_CHECKING:
    from tfopt.report.bench.bench_view import RowView, View
    from tfopt.report.bench.serving_view import ServingView

_STYLES = {"better": "green", "worse": "red", "plain": ""}
_STATUS_STYLES = {"failed": "bold red", "refused": "yellow", "interrupted": "yellow"}
_BETWEEN = 2
_NEAREST = {"\N{MULTIPLICATION SIGN}": "x", "\N{MIDDLE DOT}": "|", "\N{EN DASH}": "-"}
_REPLACE = "tfopt.nearest"


def print_in_any_encoding(stream: TextIO, errors: str = _REPLACE) -> None:
    """Make ``stream`` replace what its encoding lacks, where that would end the program.

    ``errors`` is an error handler of ``codecs``. The default puts one character for each, so
    that columns stay in line.
    """
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors=errors)


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_NEAREST.get(each, "?") for each in lacking), error.end


codecs.register_error(_REPLACE, _nearest)


def opening(view: View) -> Iterator[RenderableType]:
    """Yield the title, what a reader must know first, and the headline."""
    yield Text(view.title, style="bold underline")
    if view.summary.warning:
        yield Text(view.summary.warning, style="bold yellow")
    yield Text(view.summary.headline, style="bold")


def where_it_comes_from(view: View) -> RenderableType:
    """Return the facts, a line each."""
    facts = (Text.assemble((f"{name}: ", "dim"), value) for name, value in view.facts)
    return listed("Where it comes from", facts)


def what_to_keep(view: View, otherwise: str) -> RenderableType:
    """Return the last lines: the chain to keep and what it brought, or ``otherwise``."""
    if not view.keep:
        return Group(Text(), Text(otherwise, style="bold"))
    lines = (("Keep:", view.keep), ("Brought:", view.brought))
    pairs = ((Text(label, style="bold green"), Text(text)) for label, text in lines)
    return Group(Text(), hanging(pairs))


def not_available(footnotes: Sequence[str], *others: str) -> RenderableType:
    """Return the reasons of what is not there: the footnotes, and others without a number."""
    notes = (Text(f"[{n}] {text}") for n, text in enumerate(footnotes, start=1))
    return listed("Not available", (*notes, *map(Text, others)))


def serving_table(serving: ServingView | None) -> Iterator[RenderableType]:
    """Yield the table of what the variants would serve; nothing where that was not compared."""
    if serving is None:
        return
    yield listed(serving.title, [Text(serving.caption)])
    yield tables_of(serving.columns, serving.rows)
    yield not_available(serving.footnotes)
    yield listed("Notes", map(Text, serving.notes))


def listed(title: str, lines: Iterable[Text]) -> RenderableType:
    """Return a heading over indented lines; nothing at all without lines."""
    found = tuple(lines)
    if not found:
        return Group()
    indented = hanging((Text(" "), line) for line in found)
    return Group(Text(), Text(title, style="bold"), indented)


def hanging(rows: Iterable[tuple[Text, Text]]) -> Table:
    """Return pairs side by side; a long second part wraps under itself and is never cut."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for first, second in rows:
        grid.add_row(first, second)
    return grid


def story(row: RowView) -> Text:
    """Return a row's name, and its story."""
    text = Text(row.name, style="bold")
    if not row.measured:
        style = _STATUS_STYLES.get(row.status, "dim")
        text.append(f" {row.status_text}", style=f"not bold {style}")
    if row.story:
        text.append(": " + "\n".join(row.story), style="not bold")
    return text


@dataclass(frozen=True)
class TextColumn:
    """A column of any texts, which may have several lines."""

    heading: Text
    cells: tuple[Text, ...]

    @property
    def width(self) -> int:
        """Return the width of its longest line, in terminal cells."""
        lines = [line for text in (self.heading, *self.cells) for line in text.split() or [Text()]]
        return max(line.cell_len for line in lines)


@dataclass(frozen=True)
class Tables:
    """Columns, broken into as few tables as the console is wide enough for."""

    names: TextColumn
    """What stands first in each table."""
    columns: Sequence[TextColumn]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [column.width + _BETWEEN for column in self.columns]
        taken = 0
        names = min(self.names.width, options.max_width // 2)
        for size in pack(widths, options.max_width - names):
            yield Text()
            yield self._table(self.columns[taken : taken + size])
            taken += size

    def _table(self, columns: Sequence[TextColumn]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        group = [self.names, *columns]
        table.add_column(self.names.heading, overflow="fold")
        for column in columns:
            table.add_column(column.heading, justify="right", no_wrap=True)
        for cells in zip(*(column.cells for column in group), strict=True):
            table.add_row(*cells)
        return table


def tables_of(columns: Sequence[Heading], rows: Sequence[TableRow]) -> Tables:
    """Return the tables of a report's rows."""
    return Tables(
        TextColumn(Text(), tuple(Text(row.name) for row in rows)),
        [
            TextColumn(_heading(column), tuple(_cell(row, number) for row in rows))
            for number, column in enumerate(columns)
        ],
    )


def pack(widths: Sequence[int], room: int) -> list[int]:
    """Return how many columns go into each table: few tables, about equally wide."""
    sizes = _fill(widths, room)
    narrower = room
    while len(_fill(widths, narrower - 1)) == len(sizes) and narrower > max(widths):
        narrower -= 1
    return _fill(widths, narrower)


def _fill(widths: Sequence[int], room: int) -> list[int]:
    sizes: list[int] = []
    used = 0
    for width in widths:
        if not sizes or used + width > room:
            sizes.append(0)
            used = 0
        sizes[-1] += 1
        used += width
    return sizes


def _heading(column: Heading) -> Text:
    # Two lines, since the headings are longer than the figures under them.
    if column.detail:
        return Text(f"{column.title}\n({column.detail})")
    words = column.title.split()
    breaks = ((" ".join(words[:n]), " ".join(words[n:])) for n in range(len(words)))
    return Text("\n".join(min(breaks, key=lambda lines: max(map(len, lines)))))


def _cell(row: TableRow, number: int) -> Text:
    if not row.measured:
        return Text(row.status_text if number == 0 else fmt.NOTHING, style="dim")
    cell = row.cells[number]
    style = _STYLES[cell.tone]
    text = Text(cell.text, style="" if cell.detail else style)
    if cell.detail:
        text.append(f" ({cell.detail})", style=style or "dim")
    if cell.badge:
        text.append(f"\n{cell.badge}", style=style or "dim")
    if cell.footnote:
        text.append(f" [{cell.footnote}]", style="dim")
    return text
