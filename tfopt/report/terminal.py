"""Render a report for a terminal of any width: as many columns side by side as fit, then the rest.

No figure is cut, and texts are never read as markup. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from tfopt.report import format as fmt
from tfopt.report.table import Row, Table
from tfopt.report.view import View

_STYLES = {"better": "green", "worse": "red", "plain": ""}
_ENDLESS = 100_000


def as_terminal(view: View) -> RenderableType:
    """Return the report as something that a ``rich`` console prints."""
    return Group(*_blocks(view))


def as_text(view: View, width: int | None = None) -> str:
    """Return plain text, as wide as the terminal unless ``width`` is given."""
    console = Console(width=width, color_system=None)
    with console.capture() as shown:
        console.print(as_terminal(view))
    return "\n".join(line.rstrip() for line in shown.get().splitlines()) + "\n"


def _blocks(view: View) -> Iterator[RenderableType]:
    yield Text(view.title, style="bold underline")
    if view.warning:
        yield Text(view.warning, style="bold yellow")
    if view.headline:
        yield Text(view.headline, style="bold")
    yield from map(Text, view.notes)
    for table in view.tables:
        yield from _table(table)
        yield from _listed("Each variant", [_story(row) for row in table.rows if row.story])
    facts = (Text.assemble((f"{name}: ", "dim"), text) for name, text in view.facts)
    yield from _listed("Where it comes from", facts)
    if view.keep:
        yield Text.assemble((f"\n{view.keep_title}: ", "bold green"), view.keep)
        yield Text.assemble(("Brought: ", "bold green"), view.brought or view.headline)
    elif view.headline:
        yield Text(f"\n{view.as_it_is or view.headline}", style="bold")


def _story(row: Row) -> Text:
    """Return the story and the flags; the page has the rest."""
    status = "" if row.measured else f" {row.status_text}"
    flags = "".join(f"\n{flag}" for flag in row.flags)
    story = "\n".join(row.story)
    return Text.assemble((row.name, "bold"), (status, "yellow"), f": {story}", (flags, "yellow"))


def _listed(title: str, lines: Iterable[Text]) -> Iterator[RenderableType]:
    """Yield a heading over indented lines; nothing at all without lines."""
    indented = [Padding(line, (0, 0, 0, 2), expand=False) for line in lines]
    if indented:
        yield Text(f"\n{title}", style="bold")
        yield from indented


def _table(table: Table) -> Iterator[RenderableType]:
    """Yield a table as wide as the console allows, and what is to be said of it."""
    if table.title:
        yield Text(f"\n{table.title}", style="bold")
    if table.caption:
        yield Text(table.caption, style="dim")
    if table.rows:
        yield _Grids(table)
    yield from _listed("Notes", map(Text, table.told))


@dataclass(frozen=True)
class _Grids:
    """A table, broken into as few as the console is wide enough for."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        endless, widest_name = options.update(width=_ENDLESS), options.max_width // 2
        groups: list[list[int]] = [[]]
        for number in range(len(self.table.columns)):
            wider = self._grid([*groups[-1], number], widest_name)
            if groups[-1] and Measurement.get(console, endless, wider).maximum > options.max_width:
                groups.append([])
            groups[-1].append(number)
        for numbers in groups:
            yield from (Text(), self._grid(numbers, widest_name))

    def _grid(self, numbers: Sequence[int], widest_name: int) -> Grid:
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        grid.add_column(overflow="fold", max_width=widest_name)
        for number in numbers:
            column = self.table.columns[number]
            # Two lines, since the headings are longer than the figures under them.
            two = f"{column.title}\n({column.detail})"
            heading = two if column.detail else column.title.replace(", ", ",\n")
            grid.add_column(Text(heading), justify="right", no_wrap=True)
        for row in self.table.rows:
            grid.add_row(Text(row.name), *(self._cell(row, number) for number in numbers))
        return grid

    def _cell(self, row: Row, number: int) -> Text:
        if not row.measured:
            return Text(row.status_text if number == 0 else fmt.NOTHING, style="dim")
        cell = row.cells[number]
        style = _STYLES[cell.tone]
        text = Text(cell.text, style="" if cell.detail else style)
        if cell.detail:
            text.append(f" ({cell.detail})", style=style or "dim")
        if cell.badge:
            text.append(f"\n{cell.badge}", style=style or "dim")
        if cell.reason:
            text.append(f" [{self.table.footnote(cell)}]", style="dim")
        return text
