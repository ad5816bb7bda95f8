"""A bench report as a file: read back as written, and refused when it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfopt.report.bench_report import (
    BenchReport,
    DamagedReport,
    read_bench_report,
)


@pytest.mark.parametrize("which", ["trained", "rough_bench", "hostile_bench"])
def test_what_is_read_is_what_was_written(request, which, tmp_path, texts):
    report = request.getfixturevalue(which)
    encodable = texts(report, lambda text: text.replace("\ud800", "?"))
    (tmp_path / "bench.json").write_text(report.to_json())
    assert read_bench_report(tmp_path / "bench.json") == encodable


def test_a_file_that_was_cut_off_is_damaged(cpu, tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(cpu.to_json())
    text = path.read_text()
    path.write_text(text[:-300])
    with pytest.raises(DamagedReport, match=r"bench\.json"):
        read_bench_report(path)


def test_a_figure_changed_by_hand_is_told(cpu, tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(cpu.to_json())
    content = json.loads(path.read_text())
    content["variants"][4]["against_reference"]["ratio"] = 0.4
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedReport, match="changed after it was written"):
        read_bench_report(path)


def test_a_seal_is_over_the_values_not_the_layout(cpu):
    content = json.loads(cpu.to_json())
    assert BenchReport.from_json(json.dumps(content, sort_keys=True)) == cpu


@pytest.mark.parametrize("schema", ["tfopt.bench/4", "tfopt.bench/5", None])
def test_another_schema_is_refused_by_name(cpu, schema):
    content = {**json.loads(cpu.to_json()), "schema": schema}
    with pytest.raises(DamagedReport, match=r"tfopt\.bench/6") as caught:
        BenchReport.from_json(json.dumps(content))
    assert str(schema or "null") in caught.value.received
    assert "tfopt bench" in caught.value.fix


def test_what_is_no_text_or_not_there_is_refused(tmp_path):
    (tmp_path / "bench.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DamagedReport, match="cannot be read"):
        read_bench_report(tmp_path / "bench.json")
    with pytest.raises(DamagedReport, match="No such file"):
        read_bench_report(tmp_path / "nowhere.json")


PUBLISHED = sorted(Path(__file__).parents[2].glob("benchmarks/results/*-bench-*.json"))


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
