"""The bench report as Markdown and in a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from tfopt.report.documents import Report
from tfopt.report.html import as_html
from tfopt.report.markdown import as_markdown
from tfopt.report.statistics import Comparison
from tfopt.report.terminal import as_terminal
from tfopt.report.view import view_of


def test_markdown_says_what_the_page_says(lossy, quick):
    markdown = as_markdown(lossy)
    assert f"**{view_of(lossy).summary.headline}**" in markdown
    assert (
        "> **Quality is lost, not recommended: chains up to + Prune (-1.20 points).**" in markdown
    )
    assert "Keep:" not in markdown
    assert "-1.20 lost" in markdown
    assert "<details><summary>Where it comes from</summary>" in markdown
    assert as_markdown(quick).startswith("## cnn_mnist (quick)\n")


def test_a_bad_day(rough_bench):
    markdown = as_markdown(rough_bench)
    assert "| + Prune | *failed* | - |" in markdown
    assert "received: steps_per_execution=16<br>" in markdown
    assert "- forced: another program was using the CPU" in markdown


def shown(report, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(as_terminal(report))
    return console.file.getvalue()


def test_the_last_lines_are_what_to_do(cpu, rough_bench):
    *_, keep, brought = shown(cpu, 400).rstrip().splitlines()
    assert keep.split(maxsplit=1) == ["Keep:", cpu.recommendation.keep]
    assert brought.split(maxsplit=1) == ["Brought:", cpu.recommendation.brought]
    assert (
        shown(rough_bench, 400).rstrip().splitlines()[-1] == view_of(rough_bench).summary.headline
    )


def test_a_bad_day_in_a_terminal(rough_bench):
    text = shown(rough_bench, 80)
    assert "Incomplete: the measurement stopped before its end. Failed: + Prune." in text
    assert "+ Prune failed: MemoryError: no room" in text
    assert "forced: another program was using the CPU" in text
    assert "Keep:" not in text


def test_what_is_not_certain_is_kept_nowhere(cpu):
    last = replace(cpu.variants[-1], against_reference=Comparison(0.6, 0.3, 1.2, 3))
    report = replace(cpu, variants=(*cpu.variants[:-1], last))
    text, markdown, page = shown(report, 400), as_markdown(report), as_html(report)
    assert text.rstrip().splitlines()[-1] == view_of(report).summary.headline
    assert "Keep" not in text + markdown + page
    assert 'class="kept"' in as_html(cpu)
    assert 'class="kept"' not in page
    assert Report(report)["kept"] is report.reference
