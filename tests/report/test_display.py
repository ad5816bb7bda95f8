"""What a long call shows of its progress where there is no terminal, and that all of them do."""

import inspect
from importlib import import_module
from types import SimpleNamespace

import pytest
import rich.console
from IPython.core import display_functions, interactiveshell

import tfopt
from tfopt.report.display import Display
from tfopt.tune.tune import Tuned

LONG = [tfopt.tune, tfopt.measure, tfopt.find_batch_size]


@pytest.fixture
def published(monkeypatch):
    """Record the messages that a kernel sends to a notebook's cell."""
    messages = []
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    monkeypatch.setattr(interactiveshell.InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(
        display_functions, "publish_display_data", lambda **message: messages.append(message)
    )
    return messages


def test_a_notebook_has_one_output_with_what_was_found_and_what_runs(published):
    with Display() as display:
        display.doing("races")
        display.doing("races")
        display.say("best so far: jit_compile")
        display.waiting("building baseline", for_s=1)
        display.waiting("building baseline", for_s=7)
    shown = [each["data"]["text/plain"] for each in published]
    assert shown[:3] == ["starting ...", "races, 0 s ...", "best so far: jit_compile"]
    assert shown[3] == "best so far: jit_compile\nbuilding baseline, 7 s so far ..."
    assert shown[4] == "best so far: jit_compile\ntook 0 s"
    assert ["update" in each for each in published] == [False, True, True, True, True]
    assert len({each["transient"]["display_id"] for each in published}) == 1


def test_all_that_takes_long_shows_its_progress_as_fit_does():
    for function in (*LONG, tfopt.optimize, tfopt.run, Tuned.fit):
        assert inspect.signature(function).parameters["verbose"].default == "auto", function


@pytest.mark.parametrize("function", LONG)
def test_a_verbose_that_fit_does_not_take_is_refused(function):
    with pytest.raises(tfopt.UserError, match="Invalid verbose"):
        function("no_such_module:job", verbose="loud")


def test_a_quiet_measurement_shows_nothing_in_a_notebook(published):
    with Display(verbose=False) as display:
        display.doing("races")
        display.say("best so far: jit_compile")
    assert published == []


def test_the_whole_run_and_its_budget_are_shown(monkeypatch, capsys):
    clock = [100.0]
    made = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr(import_module("tfopt.report.display"), "time", made)
    display = Display(budget_s=135)
    clock[0] += 40
    for phase in ("racing single changes", "turns of baseline"):
        with display:  # a search, then a measurement
            display.doing(phase)
        clock[0] += 30
    told = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert told[0].strip() == "racing single changes, 40 of 135 s ..."
    assert told[-1].strip() == "turns of baseline, 70 of 135 s ..."
