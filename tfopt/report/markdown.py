"""Render a report as Markdown that pastes well into a pull request.

No text of the report can start markup, end a table cell, mention anybody or run as HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tfopt.report import format as fmt
from tfopt.report.table import Row, Table
from tfopt.report.view import View

_ACTIVE = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
_LIST_MARK = re.compile(r"^[+-](?=\s)")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_NO_MENTION = "@&#8203;"


def as_markdown(view: View) -> str:
    """Return the report as one Markdown document."""
    return "\n".join(_lines(view)).rstrip() + "\n"


def _lines(view: View) -> Iterator[str]:
    yield from (f"## {escape(view.title)}", "")
    if view.warning:
        yield from (f"> **{escape(view.warning)}**", "")
    if view.headline:
        yield from (f"**{escape(view.headline)}**", "")
    if view.keep:
        yield f"- {view.keep_title}: {code(view.keep)}"
        if view.brought:
            yield f"- Brought: {escape(view.brought)}"
    elif view.as_it_is:
        yield f"- {escape(view.as_it_is)}"
    yield from map(item, view.notes)
    yield ""
    for table in view.tables:
        yield from _table(table)
    rows = [row for row in view.table.rows if row.story]
    if rows:
        yield from _folded("Each variant", map(_variant, rows))
    if view.facts:
        yield from _folded("Where it comes from", (_said(*fact) for fact in view.facts))


def _table(table: Table) -> Iterator[str]:
    """Yield a table of figures, and what is to be said of it."""
    if table.title:
        yield from (f"**{escape(table.title)}**", "")
    if table.caption:
        yield from (escape(table.caption), "")
    if table.rows:
        headings = [escape(column.heading) for column in table.columns]
        yield f"| | {' | '.join(headings)} |"
        yield f"|---|{'---:|' * len(headings)}"
        for row in table.rows:
            cells = [escape(table.in_words(cell)) for cell in row.cells]
            if not row.measured:
                cells = [f"*{row.status_text}*", *[fmt.NOTHING] * (len(headings) - 1)]
            yield f"| {escape(row.name)} | {' | '.join(cells)} |"
        yield ""
    yield from (f"{escape(text)}<br>" for text in table.told)
    yield ""


def _variant(row: Row) -> str:
    """Return a row's name, status, flags, transform, story and facts as one item."""
    status = "" if row.measured else f" ({row.status_text})"
    parts = [f"**{escape(row.name)}**{status}"]
    parts += [f"**{escape(flag)}**" for flag in row.flags]
    if row.transform:
        parts.append(code(row.transform))
    parts += [escape(text) for text in row.story]
    parts += [_said(name, value) for name, value in row.facts]
    return "<br>".join(parts)


def _said(name: str, text: str) -> str:
    return f"{name}: {code(text) if name == 'Command' else escape(text)}"


def _folded(title: str, items: Iterable[str]) -> Iterator[str]:
    """Yield a list that a reader opens; the blank lines let Markdown work inside it."""
    yield from (f"<details><summary>{title}</summary>", "")
    yield from (f"- {text}" for text in items)
    yield from ("", "</details>", "")


def escape(text: str) -> str:
    """Return plain text as Markdown, on one line."""
    escaped = _ACTIVE.sub(lambda match: f"\\{match.group()}", text.translate(_ENTITIES))
    return "<br>".join(escaped.replace("@", _NO_MENTION).splitlines())


def item(text: str) -> str:
    """Return plain text as an item of a list; "+ Prune" would begin another one."""
    return "- " + _LIST_MARK.sub(r"\\\g<0>", escape(text))


def code(text: str) -> str:
    """Return text as code outside a table, in a fence longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}"
