"""Reports of either kind by their schema: the right reader, the right renderer, or a refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tfopt.errors import UserError
from tfopt.report.bench.bench_report import DamagedReport, write_bench_report
from tfopt.report.documents import as_html, as_markdown, read_any
from tfopt.report.schema import write_report


def test_each_kind_is_read_and_shown_as_what_it_is(report, single, tmp_path):
    training = write_report(report, tmp_path / "report.json")
    bench = write_bench_report(single, tmp_path / "bench.json")
    assert read_any(training) == report
    assert read_any(bench) == single
    assert as_markdown(report).startswith("## cnn_mnist\n")
    assert "One job alone" in as_markdown(single)
    assert 'class="bars"' in as_html(report)
    assert 'id="plot-windows"' in as_html(single)


def test_a_file_that_was_cut_off_is_told_by_its_own_reader(report, single, tmp_path):
    bench = tmp_path / "bench.json"
    bench.write_text(single.to_json()[:2000])
    with pytest.raises(DamagedReport, match=r"bench\.json"):
        read_any(bench)
    training = tmp_path / "report.json"
    training.write_text(report.to_json()[:2000])
    with pytest.raises(UserError, match=r"report\.json") as caught:
        read_any(training)
    assert not isinstance(caught.value, DamagedReport)


@pytest.mark.parametrize(
    "content", ['{"schema": "other/1"}', '{"a": 1}', "[]", "7", "", "[" * 100_000]
)
def test_anything_else_is_refused(content, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"other\.json"):
        read_any(path)


def test_another_schema_is_refused_by_both_names(tmp_path):
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"schema": "other/1"}))
    with pytest.raises(UserError) as caught:
        read_any(path)
    assert "tfopt.report/1" in caught.value.expected
    assert "tfopt.bench/2" in caught.value.expected


@pytest.mark.parametrize("form", ["terminal", "md", "html"])
def test_the_command_shows_a_bench_report(single, tmp_path, form):
    path = write_bench_report(single, tmp_path / "bench.json")
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "tfopt.commands.cli",
            "report",
            str(path),
            "--format",
            form,
        ],
        capture_output=True,
        encoding="ascii",
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "One job alone" in " ".join(done.stdout.split())
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "tensorflow" not in loaded
    assert ("matplotlib" in loaded) == (form == "html")
