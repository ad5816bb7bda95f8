"""How often the verdicts are wrong: the committed benchmark, with fewer trials of fixed seeds."""

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def calibration(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("calibration", BENCHMARKS / "calibration.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "calibration", module)
    spec.loader.exec_module(module)
    return module


def test_a_program_differs_from_itself_in_at_most_one_trial_of_twenty(calibration):
    same = calibration.verdicts(300, 0.0, seed=0)
    false = sum(same["verdicts"].get(verdict, 0) for verdict in ("faster", "slower"))
    assert false <= 0.05
    assert same["intervals_that_hold_the_truth"] >= 0.95


def test_a_slowdown_of_five_percent_is_found(calibration):
    slower = calibration.verdicts(300, 0.05, seed=1)
    assert slower["verdicts"]["slower"] >= 0.9
    assert slower["intervals_that_hold_the_truth"] >= 0.95
