"""The report as Markdown, read back by a Markdown parser."""

from __future__ import annotations

import pytest

from tfopt.report.markdown import code, escape, render_markdown


def test_hostile_texts_are_shown_as_they_are(hostile, markdown_of):
    parsed = markdown_of(render_markdown(hostile))
    shown = "</script><script>alert(1)</script>|a`b``c"
    *_, last = parsed.tables[1]
    assert "</script><script>alert(1)</script>" in parsed.text
    assert last[0] == "kept chain"
    assert parsed.tables[1][2][0].startswith(f"+ Place{shown}")
    assert "*e* _f_ [g](http://h) @\u200bi &amp;" in parsed.text
    assert hostile.environment.python.split("<")[0] in parsed.text


def test_the_figures_are_those_of_the_report(report, markdown_of):
    *_, kept = markdown_of(render_markdown(report)).tables[1]
    times = "\N{MULTIPLICATION SIGN}"
    assert kept == [
        "kept chain", "3.94 (4.45)", "64", f"16,244 (2.19{times})", f"2.48 (2.47{times})",
        "97.71 % (+0.49)", "1.24", "0.620", "812", "n/a [1]", "220 (61.8)", "58.3 (97.68 %)",
    ]  # fmt: skip


def test_a_bad_day(rough):
    markdown = render_markdown(rough)
    assert "> **Incomplete: the measurement stopped after 6 rows. Failed: + Prune.**" in markdown
    assert "| + Prune | *failed* | - |" in markdown
    assert "received: steps_per_execution=16<br>" in markdown
    assert "Keep:" not in markdown


def test_a_chain_of_nothing_is_not_what_to_keep(left):
    markdown = render_markdown(left)
    assert "- Keep the job as it is: no link was worth keeping" in markdown
    assert "- Dropped: Place: one device" in markdown
    assert "Keep:" not in markdown
    assert "Brought:" not in markdown


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


def test_no_code_of_nothing():
    assert code("") == ""
