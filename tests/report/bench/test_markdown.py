"""The bench report as Markdown, read back by a Markdown parser."""

from __future__ import annotations

import pytest

from tfopt.report.bench.bench_view import view_of
from tfopt.report.bench.renderers import render_bench_markdown

EVERY = ["cpu", "gpu", "rough", "lossy", "quick", "pair", "single", "hostile"]
ALLOWED = {
    "h2", "p", "strong", "em", "code", "ul", "li", "br", "details", "summary",
    "table", "thead", "tbody", "tr", "th", "td", "blockquote",
}  # fmt: skip


@pytest.mark.parametrize("which", EVERY)
def test_the_table_has_a_row_each_and_no_stray_cell(request, which, markdown_of):
    report = request.getfixturevalue(which)
    (figures,) = markdown_of(render_bench_markdown(report)).tables
    view = view_of(report)
    assert {len(row) for row in figures} == {len(view.columns) + 1}
    assert [row[0] for row in figures[1:]] == [
        row.name.replace("@", "@\u200b") for row in view.rows
    ]


@pytest.mark.parametrize("which", EVERY)
def test_no_text_becomes_markup(request, which, markdown_of):
    parsed = markdown_of(render_bench_markdown(request.getfixturevalue(which)))
    assert {tag for tag, _ in parsed.tags} <= ALLOWED
    assert all(not attributes or "style" in attributes for _, attributes in parsed.tags)
    assert sum(tag == "h2" for tag, _ in parsed.tags) == 1


def test_it_says_what_the_page_says(lossy):
    markdown = render_bench_markdown(lossy)
    view = view_of(lossy)
    assert f"**{view.summary.headline}**" in markdown
    assert "> **Quality is lost, not recommended: + Prune (-1.20 points).**" in markdown
    assert "Keep:" not in markdown
    assert "-1.20 lost" in markdown
    assert "<details><summary>Where it comes from</summary>" in markdown


def test_a_quick_measurement_is_marked(quick):
    lines = render_bench_markdown(quick).splitlines()
    assert lines[0] == "## cnn_mnist (quick)"
    assert sum(", quick)" in line for line in lines if line.startswith("| +")) == 4


def test_a_bad_day(rough):
    markdown = render_bench_markdown(rough)
    assert "| + Prune | *failed* | - |" in markdown
    assert "received: steps_per_execution=16<br>" in markdown
    assert "- forced: another program was using the CPU" in markdown
    assert "**1 of 7 blocks invalid**" in markdown
