"""Render a report as Markdown that pastes well into a pull request.

No text of the report can start markup, end a table cell, mention anybody or run as HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from tfopt.report import format as fmt
from tfopt.report.bench_report import BenchReport
from tfopt.report.table import Row, Table
from tfopt.report.view import VariantRow, View, view_of

_ACTIVE = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
_LIST_MARK = re.compile(r"^[+-](?=\s)")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_NO_MENTION = "@&#8203;"


def as_markdown(report: BenchReport) -> str:
    """Return the report as one Markdown document."""
    return document(_lines(view_of(report)))


def document(lines: Iterable[str]) -> str:
    """Return lines as the text of a file."""
    return "\n".join(lines).rstrip() + "\n"


def _lines(view: View) -> Iterator[str]:
    yield from heading(view.title, view.summary.warning)
    yield f"**{escape(view.summary.headline)}**"
    yield ""
    if view.tiles:
        yield from _tiles(view)
    if view.keep:
        yield f"- Keep: {code(view.keep)}"
        yield f"- Brought: {escape(view.brought)}"
    elif view.as_it_is:
        yield f"- {escape(view.as_it_is)}"
    yield from (f"- Not kept: {escape(text)}" for text in view.dropped)
    yield from (f"- {escape(note)}" for note in view.notes)
    yield ""
    yield from table(view.table)
    if view.serving is not None:
        yield from table(view.serving)
    yield from _folded("Each variant", map(_variant, view.table.rows))
    facts = (
        f"{name}: {code(value) if name == 'Command' else escape(value)}"
        for name, value in view.facts
    )
    yield from _folded("Where it comes from", [*facts, escape(view.method)])


def heading(title: str, warning: str) -> Iterator[str]:
    """Yield the title, and what a reader must know first."""
    yield f"## {escape(title)}"
    yield ""
    if warning:
        yield f"> **{escape(warning)}**"
        yield ""


def _tiles(view: View) -> Iterator[str]:
    """Yield the few figures before and after."""
    yield f"| | Reference | {escape(view.summary.subject or '')} | |"
    yield "|---|---:|---:|---|"
    for tile in view.tiles:
        cells = (tile.label, tile.before, tile.after, tile.change)
        yield f"| {' | '.join(map(escape, cells))} |"
    yield ""


def table(figures: Table[Any]) -> Iterator[str]:
    """Yield a table of figures, and what is to be said of it."""
    if figures.title:
        yield from (f"**{escape(figures.title)}**", "")
    if figures.caption:
        yield from (escape(figures.caption), "")
    if figures.rows:
        headings = [escape(column.heading) for column in figures.columns]
        yield f"| | {' | '.join(headings)} |"
        yield f"|---|{'---:|' * len(headings)}"
        for row in figures.rows:
            yield f"| {escape(row.name)} | {' | '.join(_cells(row, len(headings)))} |"
        yield ""
    for number, text in enumerate(figures.footnotes, start=1):
        yield f"\\[{number}\\] {escape(text)}<br>"
    yield from (f"{escape(text)}<br>" for text in figures.notes)
    yield ""


def _cells(row: Row, width: int) -> list[str]:
    if not row.measured:
        return [f"*{row.status_text}*", *[fmt.NOTHING] * (width - 1)]
    return [escape(cell.in_words) for cell in row.cells]


def _variant(row: VariantRow) -> str:
    """Return a row's name, status, flags, transform, story and facts as one item."""
    status = "" if row.measured else f" ({row.status_text})"
    parts = [f"**{escape(row.name)}**{status}"]
    parts += [f"**{escape(flag)}**" for flag in row.flags]
    if row.transform:
        parts.append(code(row.transform))
    parts += [escape(text) for text in row.story]
    parts += [f"{name}: {escape(value)}" for name, value in row.facts]
    return "<br>".join(parts)


def _folded(title: str, items: Iterable[str]) -> Iterator[str]:
    """Yield a list that a reader opens; the blank lines let Markdown work inside it."""
    yield f"<details><summary>{title}</summary>"
    yield ""
    yield from (f"- {item}" for item in items)
    yield ""
    yield "</details>"
    yield ""


def escape(text: str) -> str:
    """Return plain text as Markdown, on one line."""
    escaped = _ACTIVE.sub(lambda match: f"\\{match.group()}", text.translate(_ENTITIES))
    return "<br>".join(escaped.replace("@", _NO_MENTION).splitlines())


def item(text: str) -> str:
    """Return plain text as an item of a list; "+ Prune" would begin another one."""
    return "- " + _LIST_MARK.sub(r"\\\g<0>", escape(text))


def code(text: str) -> str:
    """Return text as code outside a table, in a fence longer than any run of backticks in it."""
    if not text:
        return ""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"
