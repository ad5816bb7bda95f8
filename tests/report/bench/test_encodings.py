"""``tfopt report`` in an encoding that lacks some characters: as well as it can, no crash."""

from __future__ import annotations

import html
import io
import sys
from dataclasses import replace

import pytest

from tfopt.commands.cli import main

BETA = "\N{GREEK SMALL LETTER BETA}"
TIMES = "\N{MULTIPLICATION SIGN}"


@pytest.fixture
def shown(trained, tmp_path, monkeypatch):
    """Shows a report on a standard output of an encoding."""
    path = tmp_path / "bench.json"
    path.write_text(replace(trained, title=f"weights {BETA}").to_json(), encoding="utf-8")

    def show(form: str, encoding: str) -> str:
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["report", str(path), "--format", form]) == 0
        return stream.buffer.getvalue().decode(encoding)

    return show


@pytest.mark.parametrize("form", ["md", "html"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_document_names_what_the_encoding_lacks(shown, form, encoding):
    whole, lacking = shown(form, "utf-8"), shown(form, encoding)
    assert f"weights {BETA}" in whole
    assert TIMES in whole
    assert "weights &#946;" in lacking
    assert html.unescape(lacking) == html.unescape(whole)


def test_a_terminal_without_them_shows_the_nearest(shown):
    whole, lacking = shown("terminal", "utf-8"), shown("terminal", "ascii")
    assert f"weights {BETA}" in whole
    assert "weights ?" in lacking
    factors = [word for word in whole.split() if TIMES in word]
    assert factors
    assert all(word.replace(TIMES, "x") in lacking for word in factors)
    assert [*map(len, lacking.splitlines())] == [*map(len, whole.splitlines())]


def test_a_terminal_with_some_of_them_keeps_those(shown):
    lacking = shown("terminal", "latin-1")
    assert "weights ?" in lacking
    assert TIMES in lacking
