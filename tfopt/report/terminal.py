"""Render a report for a terminal of any width: as many columns side by side as fit, then the rest.

No figure is cut, and texts are never read as markup. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tfopt.report import format as fmt
from tfopt.report.bench_report import BenchReport
from tfopt.report.table import Column, Row
from tfopt.report.table import Table as Figures
from tfopt.report.view import VariantRow, View, view_of

_STYLES = {"better": "green", "worse": "red", "plain": ""}
_STATUS_STYLES = {"failed": "bold red", "refused": "yellow", "interrupted": "yellow"}
_BETWEEN = 2


def as_terminal(report: BenchReport) -> RenderableType:
    """Return the report as something that a ``rich`` console prints."""
    return Group(*_blocks(view_of(report)))


def _blocks(view: View) -> Iterator[RenderableType]:
    yield Text(view.title, style="bold underline")
    if view.summary.warning:
        yield Text(view.summary.warning, style="bold yellow")
    yield Text(view.summary.headline, style="bold")
    yield from table(view.table)
    yield listed("Each variant", map(_variant, view.table.rows))
    if view.serving is not None:
        yield from table(view.serving)
    facts = (Text.assemble((f"{name}: ", "dim"), value) for name, value in view.facts)
    yield listed("Where it comes from", facts)
    yield listed("Notes", map(Text, (view.method, *view.notes)))
    yield listed("Not kept", map(Text, view.dropped))
    yield Text()
    yield _what_to_keep(view)


def _variant(row: VariantRow) -> Text:
    """Return the story and the flags; the page has the rest."""
    text = Text(row.name, style="bold")
    if not row.measured:
        style = _STATUS_STYLES.get(row.status, "dim")
        text.append(f" {row.status_text}", style=f"not bold {style}")
    if row.story:
        text.append(": " + "\n".join(row.story), style="not bold")
    for flag in row.flags:
        text.append(f"\n{flag}", style="not bold yellow")
    return text


def table(figures: Figures[Any]) -> Iterator[RenderableType]:
    """Yield a table as wide as the console allows, and what is to be said of it."""
    if figures.title:
        yield Text(f"\n{figures.title}", style="bold")
    if figures.caption:
        yield Text(figures.caption, style="dim")
    if figures.rows:
        yield _Tables(figures.columns, figures.rows)
    footnotes = (f"[{n}] {text}" for n, text in enumerate(figures.footnotes, start=1))
    yield listed("Not available", map(Text, footnotes))
    yield listed("Notes", map(Text, figures.notes))


def _what_to_keep(view: View) -> RenderableType:
    """Return the last lines: the chain to keep and what it brought, or that there is none."""
    if not view.keep:
        return Text(view.as_it_is or view.summary.headline, style="bold")
    lines = (("Keep:", view.keep), ("Brought:", view.brought))
    return _hanging((Text(label, style="bold green"), Text(text)) for label, text in lines)


def listed(title: str, lines: Iterable[Text]) -> RenderableType:
    """Return a heading over indented lines; nothing at all without lines."""
    found = tuple(lines)
    if not found:
        return Group()
    indented = _hanging((Text(" "), line) for line in found)
    return Group(Text(), Text(title, style="bold"), indented)


def _hanging(rows: Iterable[tuple[Text, Text]]) -> Table:
    """Return pairs side by side; a long second part wraps under itself and is never cut."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for first, second in rows:
        grid.add_row(first, second)
    return grid


@dataclass(frozen=True)
class _Tables:
    """Rows, broken into as few tables as the console is wide enough for."""

    columns: Sequence[Column]
    rows: Sequence[Row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [
            (_heading(column), *(_cell(row, number) for row in self.rows))
            for number, column in enumerate(self.columns)
        ]
        widths = [max(map(_width, column)) + _BETWEEN for column in columns]
        names = max(_width(Text(row.name)) for row in self.rows)
        taken = 0
        for size in _fill(widths, options.max_width - min(names, options.max_width // 2)):
            yield Text()
            yield self._table(columns[taken : taken + size])
            taken += size

    def _table(self, columns: Sequence[tuple[Text, ...]]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column(overflow="fold")
        for heading, *_ in columns:
            table.add_column(heading, justify="right", no_wrap=True)
        for row, *cells in zip(self.rows, *(column[1:] for column in columns), strict=True):
            table.add_row(Text(row.name), *cells)
        return table


def _width(text: Text) -> int:
    """Return the width of the longest line, in terminal cells."""
    return max((line.cell_len for line in text.split()), default=0)


def _fill(widths: Sequence[int], room: int) -> list[int]:
    """Return how many columns go into each table."""
    sizes: list[int] = []
    used = 0
    for width in widths:
        if not sizes or used + width > room:
            sizes.append(0)
            used = 0
        sizes[-1] += 1
        used += width
    return sizes


def _heading(column: Column) -> Text:
    # Two lines, since the headings are longer than the figures under them.
    if column.detail:
        return Text(f"{column.title}\n({column.detail})")
    words = column.title.split()
    breaks = ((" ".join(words[:n]), " ".join(words[n:])) for n in range(len(words)))
    return Text("\n".join(min(breaks, key=lambda lines: max(map(len, lines)))))


def _cell(row: Row, number: int) -> Text:
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
