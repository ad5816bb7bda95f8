"""The bench report as Markdown that pastes well into a pull request.

Guarantees: no text of the report can start markup, end a table cell, mention anybody or run as
HTML; the table has one line a variant; what is folded opens on GitHub.
"""

from __future__ import annotations

from collections.abc import Iterator

from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.rows import RowView
from tfopt.report.bench.view import View, view_of
from tfopt.report.markdown import code, escape, folded, table


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
