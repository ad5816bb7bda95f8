"""Render a bench report for a terminal of any width, and as Markdown for a pull request.

No figure is cut, and no text of the report can start markup, end a table cell, mention anybody or
run as HTML. Nothing is printed here.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tfopt.report.bench.bench_report import BenchReport
from tfopt.report.bench.bench_view import RowView, View, view_of
from tfopt.report.markdown import code, escape, folded, table
from tfopt.report.terminal import Tables, fact, hanging, listed, told

# The bench report in a terminal, at any width.
#
# Guarantees: no figure is cut; texts are never read as markup; the last line is the headline, or
# the chain to keep and what it brought. Nothing is printed here.


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


# The bench report as Markdown that pastes well into a pull request.
#
# Guarantees: no text of the report can start markup, end a table cell, mention anybody or run as
# HTML; the table has one line a variant; what is folded opens on GitHub.


def render_bench_markdown(report: BenchReport) -> str:
    """The report as one Markdown document."""
    return "\n".join(_lines(view_of(report))).rstrip() + "\n"


def _lines(view: View) -> Iterator[str]:
    yield f"## {escape(view.title)}"
    yield ""
    if view.summary.warning:
        yield f"> **{escape(view.summary.warning)}**"
        yield ""
    yield f"**{escape(view.summary.headline)}**"
    yield ""
    yield from _advice(view)
    yield escape(view.caption)
    yield ""
    yield from table(view.columns, view.rows, view.footnotes)
    yield from (f"Not measured: {escape(text)}<br>" for text in view.left_out)
    yield ""
    yield from folded("Each variant", map(_told, view.rows))
    yield from folded("Where it comes from", _facts(view))


def _advice(view: View) -> Iterator[str]:
    if view.keep:
        yield f"- Keep: {code(view.keep)}"
        yield f"- Brought: {escape(view.brought)}"
    elif view.as_it_is:
        yield f"- {escape(view.as_it_is)}"
    yield from (f"- Not kept: {escape(text)}" for text in view.dropped)
    yield from (f"- {escape(note)}" for note in view.notes)
    if view.keep or view.as_it_is or view.dropped or view.notes:
        yield ""


def _told(row: RowView) -> str:
    status = "" if row.measured else f" ({row.status_text})"
    told = [f"**{escape(row.name)}**{status}"]
    told += [f"**{escape(flag)}**" for flag in row.flags]
    if row.transform:
        told.append(code(row.transform))
    told += [escape(text) for text in row.story]
    told += [f"{name}: {escape(value)}" for name, value in row.facts]
    return "<br>".join(told)


def _facts(view: View) -> Iterator[str]:
    for name, value in view.facts:
        yield f"{name}: {code(value) if name == 'Command' else escape(value)}"
    yield escape(view.method)
