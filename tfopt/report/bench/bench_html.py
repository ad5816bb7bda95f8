"""The bench report as one HTML file: offline, in light and dark, on a phone and on paper.

Guarantees: no script, no external address (a Content-Security-Policy in the file forbids
both); every text is escaped by the template engine; the raw data are inside, to be saved.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench.bench_report import BenchReport
from tfopt.report.bench.bench_view import BLOCK_HEADINGS, view_of
from tfopt.report.bench.plots import gallery_of
from tfopt.report.html import data_address, render_page
from tfopt.report.strict import decode

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


def render_bench_html(report: BenchReport) -> str:
    """The report as one self-contained page."""
    return render_page(
        "bench.html.j2",
        view=view_of(report),
        gallery=gallery_of(report),
        block_headings=BLOCK_HEADINGS,
        downloads=downloads_of(report),
    )
