"""Render a bench report as one HTML file, with its raw data inside, to be saved."""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench.bench_report import BenchReport
from tfopt.report.bench.bench_view import BLOCK_HEADINGS, view_of
from tfopt.report.bench.plots import gallery_of
from tfopt.report.bench.training_view import TRAINING_HEADINGS
from tfopt.report.html import data_address, render_page

_PLAIN_UP_TO = 96 * 1024
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
    title: str
    address: str


def render_bench_html(report: BenchReport) -> str:
    """Return the report as one self-contained page."""
    document = report.to_json().encode()
    table = windows_csv(report).encode("utf-8")
    return render_page(
        "bench.html.j2",
        view=view_of(report),
        gallery=gallery_of(report),
        block_headings=BLOCK_HEADINGS,
        training_headings=TRAINING_HEADINGS,
        downloads=(
            _download("bench.json", "Everything, as JSON", document, "application/json"),
            _download("windows.csv", "Every window, as CSV", table, "text/csv"),
        ),
    )


def _download(name: str, title: str, content: bytes, kind: str) -> Download:
    if len(content) <= _PLAIN_UP_TO:
        return Download(name, title, data_address(content, kind))
    packed = gzip.compress(content, mtime=0)
    return Download(f"{name}.gz", f"{title}, gzipped", data_address(packed, "application/gzip"))


def windows_csv(report: BenchReport) -> str:
    """Return one line a window, of the blocks that count and of the others."""
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
