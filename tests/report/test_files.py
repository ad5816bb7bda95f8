"""Files of reports: read back as written, from a page too, refused where they are damaged."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tfopt.commands.cli import main
from tfopt.report.bench_report import BenchReport, DamagedReport, read_bench_report
from tfopt.report.documents import Report
from tfopt.report.html import as_html

PUBLISHED = sorted(Path(__file__).parents[2].glob("benchmarks/results/*-bench-*.json"))
BETA = "\N{GREEK SMALL LETTER BETA}"


def test_a_terminal_shows_what_it_can_and_a_document_is_utf8(trained, tmp_path, monkeypatch):
    path = tmp_path / "bench.json"
    path.write_text(replace(trained, title=f"weights {BETA}").to_json(), encoding="utf-8")
    for form, encoding, shown in (
        ("terminal", "ascii", b"weights ?"),
        ("md", "ascii", f"weights {BETA}".encode()),
        ("html", "latin-1", f"weights {BETA}".encode()),
    ):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["report", str(path), "--format", form]) == 0
        assert shown in stream.buffer.getvalue()


@pytest.mark.parametrize("which", ["trained", "rough_bench", "hostile_bench"])
def test_what_is_read_is_what_was_written_and_a_page_holds_it_all(
    request, which, tmp_path, texts, page_of
):
    report = request.getfixturevalue(which)
    encodable = texts(report, lambda text: text.replace("\ud800", "?"))
    Report(encodable).save(tmp_path)
    assert read_bench_report(tmp_path / "bench.json") == read_bench_report(tmp_path) == encodable
    text = as_html(report)
    assert len(text.encode()) < 1_000_000
    (link,) = (a for tag, a in page_of(text).tags if tag == "a" and "download" in a)
    packed = base64.b64decode(link["href"].partition(";base64,")[2])
    assert BenchReport.from_json(gzip.decompress(packed).decode()) == encodable


@pytest.mark.parametrize("content", ['{"schema": "other/1"}', "[]", "", "[" * 100_000])
def test_anything_else_is_refused(content, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(DamagedReport, match=r"other\.json") as caught:
        read_bench_report(path)
    assert "tfopt.bench/7" in caught.value.expected
    with pytest.raises(DamagedReport, match=r"bench\.json"):
        read_bench_report(tmp_path)


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        ("serving", {"rows": []}),
        ("serving.rows[1].kib", {"kib": 0.0}),
        ("variants[0].processes[0]", {"turns_ms": [], "rounds": [], "steps": []}),
        ("variants[0].processes[0]", {"rounds": [0, 2, 1, *range(3, 12)]}),
        ("variants[0].processes[0]", {"host_peak_mib": None}),
        ("variants[4]", {"reason": "it was measured"}),
    ],
)
def test_what_no_report_can_hold_is_refused_by_its_place(trained, tmp_path, place, changes):
    content = json.loads(trained.to_json())
    found = content
    for key in re.findall(r"[a-z]+|\d+", place.removesuffix(".kib")):
        found = found[int(key) if key.isdecimal() else key]
    found.update(changes)
    (tmp_path / "bench.json").write_text(json.dumps(content))
    with pytest.raises(DamagedReport) as caught:
        read_bench_report(tmp_path)
    assert place in caught.value.received


def test_published_reports_are_read_or_refused_by_their_schema():
    assert PUBLISHED
    for path in PUBLISHED:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["complete"], path
        assert "--output" not in content["command"], path
        if content["schema"] == BenchReport.schema:
            assert read_bench_report(path).complete
            continue
        with pytest.raises(DamagedReport) as caught:
            read_bench_report(path)
        assert content["schema"] in caught.value.received
