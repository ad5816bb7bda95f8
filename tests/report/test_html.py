"""The page of a bench report: its raw data and its size."""

from __future__ import annotations

import base64
import gzip

import pytest

from tfopt.report.bench_report import BenchReport
from tfopt.report.html import as_html


def download(parsed):
    """The report in a page."""
    (link,) = (a for tag, a in parsed.tags if tag == "a" and "download" in a)
    return gzip.decompress(base64.b64decode(link["href"].partition(";base64,")[2])).decode()


@pytest.mark.parametrize("which", ["rough_bench", "hostile_bench", "largest"])
def test_a_page_is_under_a_megabyte_with_all_raw_data_inside(request, which, page_of, texts):
    report = request.getfixturevalue(which)
    text = as_html(report)
    assert len(text.encode()) < 1_000_000
    encodable = texts(report, lambda text: text.replace("\ud800", "?"))
    assert BenchReport.from_json(download(page_of(text))) == encodable
