"""Read the figures that version 0.1.0 wrote as the monitor's samples.

``samples.csv`` is what ``tfopt.Monitor(hz=5, file="samples.csv")`` wrote on 2026-11-24 while a dense
net trained for 60 epochs of 8 batches of 32; the reports are described in
``test_reports_of_today.py``.
"""

from pathlib import Path

import pytest

REPORTS = Path(__file__).with_name("reports")


def main(*arguments):
    from tfopt.commands.cli import main

    return main(list(map(str, arguments)))


def read(path):
    from tfopt.monitor.sample_files import read_recording

    return read_recording(path)


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


def test_samples_of_a_training_are_read():
    recording = read(REPORTS / "samples.csv")
    assert (len(recording.samples), len(recording.steps)) == (13, 61)
    assert recording.no_gpu_reason == "NVML: NVML Shared Library Not Found"
    assert sum(mark.steps for mark in recording.steps) == 60 * 8
    assert recording.steps[0].seconds == 0.4559399570007372
    host = recording.samples[-1].host
    assert (host.rss_mib, host.cpu_percent) == (603.699219, (100.0, 100.0))
    assert host.memory_limit_mib is None


def test_samples_of_a_later_format_are_refused_by_its_number(tmp_path):
    from tfopt.errors import UserError

    text = (REPORTS / "samples.csv").read_text(encoding="utf-8")
    later = text.replace('""format"": 1,', '""format"": 99,')
    assert later != text
    (tmp_path / "samples.csv").write_text(later, encoding="utf-8")
    with pytest.raises(UserError, match="format 99"):
        read(tmp_path / "samples.csv")


def test_no_file_names_a_folder_of_the_machine_it_was_made_on():
    folders = ("/work", "/root", "/tmp", "/home")
    files = [each for each in REPORTS.iterdir() if each.is_file()]
    assert len(files) >= 6
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert [each for each in folders if each in text] == [], file.name
        assert len(text) < 150_000, file.name
