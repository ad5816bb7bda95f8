"""The bench report as one HTML file: offline, in light and dark, on a phone and on paper.

Guarantees: no script, no external address (a Content-Security-Policy in the file forbids
both); every text is escaped by the template engine; the raw data are inside, to be saved.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from tfopt.report import format as fmt
from tfopt.report.bench.bench_report import BenchReport
from tfopt.report.bench.bench_view import BLOCK_HEADINGS, RowView, View, view_of
from tfopt.report.bench.plots import gallery_of
from tfopt.report.html import data_address, render_page
from tfopt.report.markdown import code, escape, folded, table
from tfopt.report.strict import decode
from tfopt.report.terminal import Tables, fact, hanging, listed, told

# All raw data of a bench report as files inside its page.
#
# Guarantees: the JSON is the report, sealed as it was; the CSV has every window of every block;
# what is large is gzipped, and the same report gives the same bytes. Where even that would make
# the page too large, both have their numbers rounded to six digits, which their links say.

_PLAIN_UP_TO = 96 * 1024
_PACKED_UP_TO = 400 * 1024
_DIGITS = 6
_HEADINGS = (
    "variant_number", "variant", "round", "counted", "window", "steps", "step_ms",
    "examples_per_step",
)  # fmt: skip
# A spreadsheet would take such a text for a formula.
_FORMULA = ("=", "+", "-", "@")


@dataclass(frozen=True)
class Download:
    """One file in the page."""

    name: str
    told: str
    address: str


def downloads_of(report: BenchReport) -> tuple[Download, ...]:
    """The report itself, and a table of its windows."""
    document = report.to_json().encode()
    rounded = len(document) > _PACKED_UP_TO and len(_packed(document)) > _PACKED_UP_TO
    if rounded:
        report = _rounded(report)
        document = report.to_json().encode()
    told = f", rounded to {_DIGITS} digits" if rounded else ""
    table = windows_csv(report).encode("utf-8")
    return (
        _download("bench.json", f"Everything, as JSON{told}", document, "application/json"),
        _download("windows.csv", f"Every window, as CSV{told}", table, "text/csv"),
    )


def _download(name: str, told: str, content: bytes, kind: str) -> Download:
    if len(content) <= _PLAIN_UP_TO:
        return Download(name, told, data_address(content, kind))
    packed = data_address(_packed(content), "application/gzip")
    return Download(f"{name}.gz", f"{told}, gzipped", packed)


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _rounded(report: BenchReport) -> BenchReport:
    """The same report, each of its numbers as near as anybody measures."""
    content = json.loads(
        report.to_json(), parse_float=lambda text: float(f"{float(text):.{_DIGITS}g}")
    )
    return decode(
        BenchReport, {key: content[key] for key in content if key not in ("schema", "seal")}
    )


def windows_csv(report: BenchReport) -> str:
    """One line a window, of the blocks that count and of the others."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(_HEADINGS)
    for number, variant in enumerate(report.variants):
        name = _no_formula(fmt.one_line(variant.name))
        for block in variant.blocks:
            counted = "yes" if block.invalid is None else "no"
            examples = "" if block.examples_per_step is None else block.examples_per_step
            windows = zip(block.steps, block.windows_ms, strict=True)
            for window, (steps, step_ms) in enumerate(windows, start=1):
                row = (number, name, block.round + 1, counted, window, steps, step_ms, examples)
                writer.writerow(row)
    return target.getvalue()


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


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


def render_bench_html(report: BenchReport) -> str:
    """The report as one self-contained page."""
    return render_page(
        "bench.html.j2",
        view=view_of(report),
        gallery=gallery_of(report),
        block_headings=BLOCK_HEADINGS,
        downloads=downloads_of(report),
    )
