"""All raw data of a bench report as files inside its page.

Guarantees: the JSON is the report, sealed as it was; the CSV has every window of every block; what
is large is gzipped, and the same report gives the same bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench.document import BenchReport
from tfopt.report.page import data_address

_PLAIN_UP_TO = 96 * 1024
_HEADINGS = (
    "variant_number", "variant", "round", "counted", "window", "step_ms", "batch_size",
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
    return (
        _download("bench.json", "Everything, as JSON", report.to_json(), "application/json"),
        _download("windows.csv", "Every window, as CSV", windows_csv(report), "text/csv"),
    )


def _download(name: str, told: str, text: str, kind: str) -> Download:
    content = text.encode("utf-8")
    if len(content) <= _PLAIN_UP_TO:
        return Download(name, told, data_address(content, kind))
    packed = gzip.compress(content, mtime=0)
    return Download(f"{name}.gz", f"{told}, gzipped", data_address(packed, "application/gzip"))


def windows_csv(report: BenchReport) -> str:
    """One line a window, of the blocks that count and of the others."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(_HEADINGS)
    for number, variant in enumerate(report.variants):
        name = _no_formula(fmt.one_line(variant.name))
        for round_, block in enumerate(variant.blocks, start=1):
            counted = "yes" if block.invalid is None else "no"
            batch = "" if block.batch_size is None else block.batch_size
            for window, step_ms in enumerate(block.windows_ms, start=1):
                writer.writerow((number, name, round_, counted, window, step_ms, batch))
    return target.getvalue()


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
