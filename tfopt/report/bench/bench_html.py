"""Render a report as one HTML file, with its raw data inside, to be saved.

The page opens offline, in light and dark, on a phone and on paper. It holds no script and no
external address, which a Content-Security-Policy in it forbids, and the template engine escapes
every text.
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tfopt.report import format as fmt
from tfopt.report.bench.bench_report import BenchReport
from tfopt.report.bench.bench_view import BLOCK_HEADINGS, view_of
from tfopt.report.bench.plots import plots_of
from tfopt.report.bench.training_view import TRAINING_HEADINGS

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
    return _page(
        view=view_of(report),
        plots=plots_of(report),
        block_headings=BLOCK_HEADINGS,
        training_headings=TRAINING_HEADINGS,
        downloads=(
            _download("bench.json", "Everything, as JSON", document, "application/json"),
            _download("windows.csv", "Every window, as CSV", table, "text/csv"),
        ),
    )


def _download(name: str, title: str, content: bytes, kind: str) -> Download:
    if len(content) <= _PLAIN_UP_TO:
        return Download(name, title, _data_address(content, kind))
    packed = gzip.compress(content, mtime=0)
    return Download(f"{name}.gz", f"{title}, gzipped", _data_address(packed, "application/gzip"))


def _page(**values: Any) -> str:
    """Return the template, filled in."""
    # Said outright: jinja2 escapes by file suffix, and .j2 is none that it knows.
    environment = Environment(
        loader=PackageLoader("tfopt.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("bench.html.j2").render(**values)


def _data_address(content: bytes, kind: str) -> str:
    """Return ``content`` as an address that needs no network; ``kind`` is its media type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


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
