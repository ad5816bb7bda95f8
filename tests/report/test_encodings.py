"""``tfopt report`` in an encoding that lacks some characters: told as well as it can, no crash."""

from __future__ import annotations

import html
import os
import subprocess
import sys
from dataclasses import replace

import pytest

BETA = "\N{GREEK SMALL LETTER BETA}"
TIMES = "\N{MULTIPLICATION SIGN}"


def _shown(report, folder, form, encoding):
    named = replace(report, title=f"weights {BETA}")
    (folder / "report.json").write_text(named.to_json(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tfopt.commands.cli", "report", "report.json", "--format", form],
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode(encoding)


def test_utf8_shows_what_was_written(report, tmp_path):
    for form in ("terminal", "md", "html"):
        shown = _shown(report, tmp_path, form, "utf-8")
        assert f"weights {BETA}" in shown
        assert TIMES in shown


@pytest.mark.parametrize("form", ["md", "html"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_document_names_what_the_encoding_lacks(report, tmp_path, form, encoding):
    shown = _shown(report, tmp_path, form, encoding)
    assert "weights &#946;" in shown
    whole = _shown(report, tmp_path, form, "utf-8")
    assert html.unescape(shown) == html.unescape(whole)


def test_a_terminal_without_them_shows_the_nearest(report, tmp_path):
    shown = _shown(report, tmp_path, "terminal", "ascii")
    assert "weights ?" in shown
    whole = _shown(report, tmp_path, "terminal", "utf-8")
    factors = [word for word in whole.split() if TIMES in word]
    assert factors
    assert all(word.replace(TIMES, "x") in shown for word in factors)
    assert [len(line) for line in shown.splitlines()] == [len(line) for line in whole.splitlines()]


def test_a_terminal_with_some_of_them_keeps_those(report, tmp_path):
    shown = _shown(report, tmp_path, "terminal", "latin-1")
    assert "weights ?" in shown
    assert TIMES in shown
