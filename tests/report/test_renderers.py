"""The bench report as Markdown and in a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from tfopt.report.markdown import as_markdown
from tfopt.report.terminal import as_terminal
from tfopt.report.view import view_of


def test_markdown_says_what_the_page_says(lossy, quick):
    markdown = as_markdown(view_of(lossy))
    assert f"**{view_of(lossy).headline}**" in markdown
    assert (
        "> **Quality is lost, not recommended: chains up to + Prune (-1.20 points).**" in markdown
    )
    assert "Keep:" not in markdown
    assert "-1.20 lost" in markdown
    assert "<details><summary>Where it comes from</summary>" in markdown
    assert as_markdown(view_of(quick)).startswith("## cnn_mnist (quick)\n")


def shown(report, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(as_terminal(view_of(report)))
    return console.file.getvalue()


def test_the_last_lines_are_what_to_do(cpu, rough_bench):
    *_, keep, brought = shown(cpu, 400).rstrip().splitlines()
    assert keep.split(maxsplit=1) == ["Keep:", cpu.recommendation.keep]
    assert brought.split(maxsplit=1) == ["Brought:", cpu.recommendation.brought]
    assert shown(rough_bench, 400).rstrip().splitlines()[-1] == view_of(rough_bench).headline


def test_a_bad_day_in_a_terminal(rough_bench):
    text = shown(rough_bench, 80)
    assert "Incomplete: the measurement stopped before its end. Failed: + Prune." in text
    assert "+ Prune failed: MemoryError: no room" in text
    assert "forced: another program was using the CPU" in text
    assert "Keep:" not in text
