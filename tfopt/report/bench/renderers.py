"""Render a bench report for a terminal of any width, and as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tfopt.report import format as fmt
from tfopt.report import markdown, terminal
from tfopt.report.bench.bench_report import BenchReport
from tfopt.report.bench.bench_view import RowView, View, view_of
from tfopt.report.markdown import escape


def render_bench_terminal(report: BenchReport) -> RenderableType:
    """Return the report as something that a ``rich`` console prints."""
    return Group(*_blocks(view_of(report)))


def _blocks(view: View) -> Iterator[RenderableType]:
    yield from terminal.opening(view)
    yield Text(view.caption, style="dim")
    yield terminal.tables_of(view.columns, view.rows)
    yield terminal.listed("Each variant", map(_variant, view.rows))
    yield terminal.not_available(view.footnotes, *view.left_out)
    yield from terminal.serving_table(view.serving)
    yield terminal.where_it_comes_from(view)
    yield terminal.listed("Notes", map(Text, (view.method, *view.notes)))
    yield terminal.listed("Not kept", map(Text, view.dropped))
    yield terminal.what_to_keep(view, view.as_it_is or view.summary.headline)


def _variant(row: RowView) -> Text:
    """Return the story, the flags and the advice of the time split; the page has the rest."""
    text = terminal.story(row)
    for flag in row.flags:
        text.append(f"\n{flag}", style="not bold yellow")
    for name, value in row.facts:
        if name == "Time split" and not value.startswith(fmt.NOT_AVAILABLE):
            text.append(f"\n{name}: {value}", style="not bold dim")
    return text


def render_bench_markdown(report: BenchReport) -> str:
    """Return the report as one Markdown document."""
    return markdown.document(_lines(view_of(report)))


def _lines(view: View) -> Iterator[str]:
    yield from markdown.opening(view)
    yield from markdown.tiles(view)
    yield from markdown.what_to_keep(view)
    yield from (f"- Not kept: {escape(text)}" for text in view.dropped)
    yield from (f"- {escape(note)}" for note in view.notes)
    if view.keep or view.as_it_is or view.dropped or view.notes:
        yield ""
    yield escape(view.caption)
    yield ""
    yield from markdown.table(view.columns, view.rows, view.footnotes)
    yield from (f"Not measured: {escape(text)}<br>" for text in view.left_out)
    yield ""
    yield from markdown.serving_table(view)
    stories = (markdown.story(row, row.flags, row.facts) for row in view.rows)
    yield from markdown.folded("Each variant", stories)
    yield from markdown.where_it_comes_from(view, view.method)
