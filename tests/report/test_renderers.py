"""The bench report as Markdown and in a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tfopt.report.markdown import as_markdown, code, escape
from tfopt.report.terminal import as_terminal
from tfopt.report.view import view_of


def test_markdown_says_what_the_page_says(lossy):
    markdown = as_markdown(view_of(lossy))
    assert f"**{view_of(lossy).headline}**" in markdown
    assert (
        "> **Quality is lost, not recommended: chains up to + Prune (-1.20 points).**" in markdown
    )
    assert "Keep" not in markdown
    assert "-1.20 lost" in markdown
    assert "<details><summary>Where it comes from</summary>" in markdown


def shown(report, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(as_terminal(view_of(report)))
    return console.file.getvalue()


def test_the_last_lines_are_what_to_do(cpu, rough_bench):
    *_, keep, brought = shown(cpu, 400).rstrip().splitlines()
    assert keep.strip() == f"Keep for its speed: {cpu.recommendation.keep}"
    assert brought.split(maxsplit=1) == ["Brought:", cpu.recommendation.brought]
    measured = replace(cpu.recommendation, brought="")  # of which the headline says it
    told = shown(replace(cpu, recommendation=measured), 400).rstrip().splitlines()[-1]
    assert told.split(maxsplit=1) == ["Brought:", view_of(cpu).headline]
    assert shown(rough_bench, 400).rstrip().splitlines()[-1] == view_of(rough_bench).headline


def test_escape_leaves_plain_words_alone():
    assert (
        escape("steps_per_execution=16, 10 % (a-b) + c.")
        == "steps_per_execution=16, 10 % (a-b) + c."
    )
    assert escape("<b> & @x") == "&lt;b&gt; &amp; @&#8203;x"
    assert escape("a|b") == "a\\|b"
    assert escape("x\ny") == "x<br>y"


@pytest.mark.parametrize("text", ["a", "a`b", "``", "`a", "a```b`", "a|b", "<b>"])
def test_code_is_shown_as_it_is(text, markdown_of):
    parsed = markdown_of(f"- {code(text)}")
    assert parsed.text.strip() == text
    assert [tag for tag, _ in parsed.tags] == ["ul", "li", "code"]
