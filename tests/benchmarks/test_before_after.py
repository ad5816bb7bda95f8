"""The README's picture shows what the committed results say."""

import importlib
from pathlib import Path


def test_the_picture_is_drawn_from_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    picture = importlib.import_module("benchmarks.before_after")
    assert picture.TARGET.read_text(encoding="utf-8") == picture.drawn()
    for _, whole in picture.whole_trainings():
        assert whole["low"] < whole["ratio"] < whole["high"] < 1
