"""The page of a bench report: its raw data, its size, and the marks of a quick measurement."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import re

import pytest

from tfopt.report.bench.bench_html import render_bench_html, windows_csv
from tfopt.report.bench.bench_report import BenchReport


def downloads(parsed):
    """Name and content of every file in a page."""
    found = {}
    for tag, attributes in parsed.tags:
        if tag == "a" and "download" in attributes:
            content = base64.b64decode(attributes["href"].partition(";base64,")[2])
            packed = attributes["download"].endswith(".gz")
            content = gzip.decompress(content) if packed else content
            found[attributes["download"]] = content.decode()
    return found


@pytest.mark.parametrize("which", ["cpu", "rough_bench", "hostile_bench", "largest"])
def test_a_page_is_under_a_megabyte_with_all_raw_data_inside(request, which, page_of, texts):
    report = request.getfixturevalue(which)
    text = render_bench_html(report)
    assert len(text.encode()) < 1_000_000
    document, table = downloads(page_of(text)).values()
    encodable = texts(report, lambda text: text.replace("\ud800", "?"))
    assert BenchReport.from_json(document) == encodable
    rows = list(csv.DictReader(io.StringIO(table)))
    blocks = [block for variant in report.variants for block in variant.blocks]
    assert [float(row["step_ms"]) for row in rows] == [w for b in blocks for w in b.windows_ms]
    assert sum(row["counted"] == "no" for row in rows) == sum(
        len(block.windows_ms) for block in blocks if block.invalid
    )


def test_a_spreadsheet_takes_no_name_for_a_formula(cpu):
    assert {row["variant"] for row in csv.DictReader(io.StringIO(windows_csv(cpu)))} == {
        "baseline", "'+ LearningRate", "'+ Pipeline", "'+ Execution", "'+ Prune",
    }  # fmt: skip


def test_a_quick_measurement_has_a_mark_at_every_heading(quick):
    text = render_bench_html(quick)
    headings = re.findall(r"<h2>.*?</h2>", text)
    assert len(headings) == 4
    assert all('<span class="flag">quick</span>' in heading for heading in headings)
    assert "<h1>cnn_mnist (quick)</h1>" in text
