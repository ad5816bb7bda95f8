"""The bench report in a terminal: readable at any width, and no text acts on the screen."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tfopt.report.bench.bench_view import view_of
from tfopt.report.bench.renderers import render_bench_terminal


def shown(report, width, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(render_bench_terminal(report))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_figure_is_whole_at_every_width(gpu, width):
    text = shown(gpu, width)
    assert max(map(len, text.splitlines())) <= width
    for row in view_of(gpu).rows:
        for cell in row.cells:
            assert cell.text in text
            assert cell.detail in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_the_last_lines_are_what_to_do(cpu, rough):
    *_, keep, brought = shown(cpu, 400).rstrip().splitlines()
    assert keep.split(maxsplit=1) == ["Keep:", cpu.recommendation.keep]
    assert brought.split(maxsplit=1) == ["Brought:", cpu.recommendation.brought]
    assert shown(rough, 400).rstrip().splitlines()[-1] == view_of(rough).summary.headline


def test_a_bad_day(rough):
    text = shown(rough, 80)
    assert "Incomplete: the measurement stopped before its end. Failed: + Prune." in text
    assert "+ Prune failed: MemoryError: no room" in text
    assert "1 of 7 blocks invalid" in text
    assert "forced: another program was using the CPU" in text
    assert "Keep:" not in text


def test_texts_are_neither_markup_nor_control_codes(cpu, hostile):
    marked = replace(cpu, title="[red]t[/red] [/]")
    assert "[red]t[/red] [/]" in shown(marked, 200, force_terminal=True)
    text = shown(hostile, 200)
    assert "\x1b" not in text
    assert "\u202e" not in text
    text.encode()
