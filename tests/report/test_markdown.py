"""Texts as Markdown, read back by a Markdown parser."""

from __future__ import annotations

import pytest

from tfopt.report.markdown import code, escape


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
