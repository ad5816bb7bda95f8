"""What a measurement shows of its progress where there is no terminal."""

import sys
from importlib import import_module
from types import SimpleNamespace

import rich.console
import rich.jupyter

from tfopt.measure.display import Display


def test_a_notebook_without_widgets_gets_lines(monkeypatch):
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)  # rich draws with it, else it warns
    lines = []
    monkeypatch.setattr(rich.jupyter, "display", lambda segments, text: lines.append(text.strip()))
    with Display() as display:
        display.doing("races")
        display.doing("races")
        display.doing("final")
    assert lines == ["races, 0 s ...", "final, 0 s ..."]


def test_the_whole_run_and_its_budget_are_shown(monkeypatch, capsys):
    clock = [100.0]
    made = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr(import_module("tfopt.measure.display"), "time", made)
    display = Display(budget_s=135)
    clock[0] += 40
    for phase in ("racing single changes", "turns of baseline"):
        with display:  # a search, then a measurement
            display.doing(phase)
        clock[0] += 30
    told = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert told[0].strip() == "racing single changes, 40 of 135 s ..."
    assert told[-1].strip() == "turns of baseline, 70 of 135 s ..."
