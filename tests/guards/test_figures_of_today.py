"""Read the figures that version 0.1.0 wrote as the monitor's samples.

``samples.csv`` is what ``tfopt.Monitor(hz=5, file="samples.csv")`` wrote on 2026-11-24 while a dense
net trained for 60 epochs of 8 batches of 32; the reports are described in
``test_reports_of_today.py``.
"""

import csv
import json
from pathlib import Path

import pytest

REPORTS = Path(__file__).with_name("reports")


def main(*arguments):
    from tfopt.commands.cli import main

    return main(list(map(str, arguments)))


@pytest.mark.parametrize("form", ["terminal", "md", "html"])
@pytest.mark.parametrize(
    ("name", "figures"),
    [
        # Examples a second of three rows, the accuracy to reach, the best one, KiB and a step.
        ("whole.json", ("29,516", "43,143", "57,717", "90.43", "82.42", "3.17", "1.48")),
    ],
)
def test_figures_of_a_report_are_shown(capsys, name, figures, form):
    assert main("report", REPORTS / name, "--format", form) == 0
    shown = capsys.readouterr().out
    assert [each for each in figures if each not in shown] == []


@pytest.mark.parametrize("name", ["batch_size.json", "doctor.json", "samples.csv"])
def test_a_file_that_is_no_report_is_refused_by_its_name(capsys, name):
    assert main("report", REPORTS / name) == 2
    assert name in capsys.readouterr().err


def test_every_column_that_is_written_today_is_in_a_file_of_then():
    from tfopt.monitor.sample_files import COLUMNS, FORMAT

    with (REPORTS / "samples.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(name for name in rows[0] if name in COLUMNS) == COLUMNS
    hosts, steps = ([row for row in rows if row["row"] == kind] for kind in ("host", "step"))
    assert (len(hosts), len(steps)) == (13, 61)
    about = json.loads([row for row in rows if row["row"] == "about"][-1]["told"])
    assert about["format"] == FORMAT
    assert about["no_gpu_reason"] == "NVML: NVML Shared Library Not Found"
    assert sum(int(row["steps"]) for row in steps) == 60 * 8
    assert steps[0]["seconds"] == "0.4559399570007372"
    assert (hosts[-1]["rss_mib"], hosts[-1]["cpu_percent"]) == ("603.699219", "[100.0, 100.0]")
    assert hosts[-1]["memory_limit_mib"] == ""


def test_no_file_names_a_folder_of_the_machine_it_was_made_on():
    folders = ("/work", "/root", "/tmp", "/home")
    files = [each for each in REPORTS.iterdir() if each.is_file()]
    assert len(files) >= 5
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert [each for each in folders if each in text] == [], file.name
        assert len(text) < 150_000, file.name
