"""What a measurement shows of its progress where there is no terminal."""

import sys

import rich.console
import rich.jupyter

from tfopt.measure.display import Display


def test_a_notebook_without_widgets_gets_lines(monkeypatch):
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # rich draws with it, else it warns
    lines = []
    monkeypatch.setattr(rich.jupyter, "display", lambda segments, text: lines.append(text.strip()))
    with Display() as display:
        display.doing("races", left_s=60)
        display.doing("races", left_s=30)
        display.doing("final")
    assert lines == ["races, 60 s left ...", "final ..."]
