"""The report in a terminal: readable at any width, and no text acts on the screen."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from tfopt.report.terminal import pack, render_terminal


def _shown(report, width, *, colour=False):
    system = "standard" if colour else None
    console = Console(file=io.StringIO(), width=width, force_terminal=colour, color_system=system)
    console.print(render_terminal(report))
    return console.file.getvalue()


def test_a_wide_terminal_has_one_table_and_a_narrow_one_several(report):
    assert _shown(report, 200).count("Step, ms") == _shown(report, 80).count("Step, ms") == 1
    rows = [line for line in _shown(report, 200).splitlines() if line.startswith("kept chain")]
    assert len(rows) == 1
    rows = [line for line in _shown(report, 80).splitlines() if line.startswith("kept chain")]
    assert len(rows) == 3


def test_tables_are_packed_evenly():
    assert pack([10] * 11, 1000) == [11]
    assert pack([10] * 11, 100) == [6, 5]
    assert pack([50, 10, 10, 10], 40) == [1, 3]
    assert pack([50, 60], 5) == [1, 1]


def test_a_row_name_of_any_length_is_folded(report):
    rows = (*report.rows[:-2], replace(report.rows[-2], name="+ " + "Transform" * 20))
    shown = _shown(replace(report, rows=rows), 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert "16,202 (2.18" in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown


def test_the_last_two_lines_are_what_to_do(report):
    *_, keep, brought = _shown(report, 400).rstrip().splitlines()
    assert keep.split(maxsplit=1)[0] == "Keep:"
    assert report.advice.keep in keep
    assert brought.split(maxsplit=1)[0] == "Brought:"
    assert report.advice.brought in brought


def test_the_last_line_is_that_the_job_is_best_as_it_is(left):
    *_, last = _shown(left, 400).rstrip().splitlines()
    assert last.startswith("Keep the job as it is: no link was worth keeping")
    assert "Keep:" not in _shown(left, 400)


def test_a_bad_day(rough):
    shown = _shown(rough, 80)
    assert "Incomplete: the measurement stopped after 6 rows. Failed: + Prune." in shown
    assert "+ Prune failed: MemoryError: no room" in shown
    assert "fix: drop one of them" in shown
    assert "[1] no NVIDIA driver" in shown
    assert "interrupted: the rows above are complete" in shown
    assert "Keep:" not in shown
