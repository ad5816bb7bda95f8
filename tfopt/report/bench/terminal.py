"""The bench report in a terminal, at any width.

Guarantees: no figure is cut; texts are never read as markup; the last line is the headline, or the
chain to keep and what it brought. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.rows import RowView
from tfopt.report.bench.view import View, view_of
from tfopt.report.terminal import Tables, fact, hanging, listed, told


def render_bench_terminal(report: BenchReport) -> RenderableType:
    """The report as something that a ``rich`` console prints."""
    return Group(*_blocks(view_of(report)))


def _blocks(view: View) -> Iterator[RenderableType]:
    yield Text(view.title, style="bold underline")
    if view.summary.warning:
        yield Text(view.summary.warning, style="bold yellow")
    yield Text(view.summary.headline, style="bold")
    yield Text(view.caption, style="dim")
    yield Tables(view.columns, view.rows)
    yield listed("Each variant", map(_variant, view.rows))
    notes = (Text(f"[{number}] {text}") for number, text in enumerate(view.footnotes, start=1))
    yield listed("Not available", (*notes, *map(Text, view.left_out)))
    yield listed("Where it comes from", (fact(name, value) for name, value in view.facts))
    yield listed("Notes", map(Text, (view.method, *view.notes)))
    yield listed("Not kept", map(Text, view.dropped))
    yield Text()
    if view.keep:
        yield hanging(
            (Text(label, style="bold green"), Text(text))
            for label, text in (("Keep:", view.keep), ("Brought:", view.brought))
        )
    else:
        yield Text(view.as_it_is or view.summary.headline, style="bold")


def _variant(row: RowView) -> Text:
    """The story, the flags and the advice of the time split; the rest is in the page."""
    text = told(row)
    for flag in row.flags:
        text.append(f"\n{flag}", style="not bold yellow")
    for name, value in row.facts:
        if name == "Time split":
            text.append(f"\n{name}: {value}", style="not bold dim")
    return text
