"""``tfopt report`` in an encoding that lacks some characters: as well as it can, no crash."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

from tfopt.commands.cli import main

BETA = "\N{GREEK SMALL LETTER BETA}"


def test_a_terminal_shows_what_it_can_and_a_document_is_utf8(trained, tmp_path, monkeypatch):
    path = tmp_path / "bench.json"
    path.write_text(replace(trained, title=f"weights {BETA}").to_json(), encoding="utf-8")
    for form, encoding, shown in (
        ("terminal", "ascii", b"weights ?"),
        ("md", "ascii", f"weights {BETA}".encode()),
        ("html", "latin-1", f"weights {BETA}".encode()),
    ):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["report", str(path), "--format", form]) == 0
        assert shown in stream.buffer.getvalue()
