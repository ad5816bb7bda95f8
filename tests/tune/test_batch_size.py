"""The search: which size is tried next, and what becomes of trials that fail, in any way."""

import json
import os
from importlib import import_module
from pathlib import Path

import pytest
import sizes_jobs
from made_machine import Machine

from tfopt import UserError, find_batch_size
from tfopt.commands.cli import main
from tfopt.data.host_memory import MIB, Memory
from tfopt.tune.batch_size import _sizes, next_size

search = import_module("tfopt.tune.batch_size")


def searched(sizes, start, threshold):
    """The largest size that trains, and all that were tried."""
    tried = {}
    while True:
        passed = {size for size in tried if tried[size]}
        size = next_size(sizes, start, passed, tried.keys() - passed)
        if size is None:
            return max(passed, default=0), tried
        assert size in sizes
        assert size not in tried
        tried[size] = size <= threshold
        assert len(tried) <= 18


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("start", [1, 32, 100])
def test_the_largest_multiple_is_found(replicas, start):
    unit = 8 * replicas
    sizes = _sizes(sizes_jobs.facts(examples=None, replicas=replicas), None)
    for threshold in range(1, 300, 7):
        found, tried = searched(sizes, start, threshold)
        assert found == threshold // unit * unit
        assert found + unit in tried


@pytest.mark.parametrize(
    ("facts", "at_most", "threshold", "found"),
    [
        ({"batch_size": 512}, 100, 10**9, 96),
        # The job's own batch may be off the grid.
        ({"batch_size": 5}, None, 19, 16),
        ({"examples": 7}, None, 10**9, 7),
        ({"replicas": 2}, 20, 10**9, 16),
    ],
)
def test_an_end(facts, at_most, threshold, found):
    facts = sizes_jobs.facts(**{"examples": None, **facts})
    assert searched(_sizes(facts, at_most), facts.batch_size, threshold)[0] == found


def test_what_failed_below_is_passed_over_and_no_size_at_all_is_refused():
    assert next_size(range(8, 1000, 8), 32, passed={64}, failed={32}) == 128
    with pytest.raises(UserError, match="There is no batch size to try"):
        _sizes(sizes_jobs.facts(replicas=4), 3)


# With processes that are none.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    return tmp_path


@pytest.fixture
def machine(monkeypatch):
    made = Machine(monkeypatch)
    made.facts = sizes_jobs.facts()
    return made


def made_fast(machine, batch):
    """Let examples of this batch take far less time than others."""
    usual = machine.step_ms
    machine.step_ms = lambda asked: usual(asked) / (5 if asked["batch_size"] == batch else 1)


OVER = "the process ended without a result; its last output: it held more than the 900 MiB it may"


def test_trials_that_die_are_failed_trials_with_their_reasons(machine):
    for reason in (OVER, "killed by SIGKILL", "a\nb", "ValueError: " + "x " * 1000):
        machine.failing = lambda asked: reason if asked["batch_size"] == 64 else None  # noqa: B023
        found = find_batch_size("toy:job", at_most=64)
        assert found.largest == 56
        told = found.tried[-1].reason.removesuffix(" [...]")
        assert " ".join(reason.split()).startswith(told)
        assert len(told) >= min(len(reason), 390)
        assert len(found.tried[-1].reason) <= 400


def test_the_largest_and_the_fastest_take_turns(machine, capsys):
    made_fast(machine, 64)
    found = find_batch_size("toy:job", at_most=128, verbose=0)
    assert capsys.readouterr().out == ""
    found = find_batch_size("toy:job", at_most=128)
    assert "128: " in capsys.readouterr().out
    assert [child.asked["batch_size"] for child in machine.children[-4:]] == [128] * 2 + [64] * 2
    assert {each.batch: each.processes for each in found.tried} == {32: 0, 64: 2, 128: 2}
    assert (found.largest, found.fastest) == (128, 64)
    assert (found.comparison.verdict, found.comparison.processes) == ("faster", 2)
    for machine.free_mib in (150.0, 400.0):  # for one, and for three of four processes
        found = find_batch_size("toy:job", at_most=128)
        assert (found.largest, found.fastest, found.comparison) == (128, 64, None)
        assert "measured once: no difference from the largest is certain" in str(found)


def test_an_interrupted_search_tells_what_was_found_by_then(machine, folder, capsys):
    def before(child):
        if child.asked.get("batch_size") == at:
            raise KeyboardInterrupt

    machine.before, at = before, 128
    found = find_batch_size("toy:job")
    assert found.interrupted
    assert [(each.batch, each.passed) for each in found.tried] == [(32, True), (64, True)]
    assert main(["batch-size", "toy:job", "--output", "out"]) == 130
    assert "was interrupted" in capsys.readouterr().out
    assert json.loads((folder / "out/batch_size.json").read_text())["largest"] == 64
    at = 32
    with pytest.raises(KeyboardInterrupt):
        find_batch_size("toy:job")
    assert not machine.alive


def test_on_a_cpu_a_process_may_take_nine_tenths_of_what_is_free(machine):
    machine.free_mib = 1000.0
    assert find_batch_size("toy:job", at_most=32).limit_mib == 900
    assert machine.children[-1].task.way.limit_mib == 900
    machine.facts = sizes_jobs.facts(gpus=1, examples=64)
    assert [each.batch for each in find_batch_size("toy:job").tried] == [32, 64]
    assert machine.children[-1].task.way.limit_mib is None


def test_where_nothing_trains_or_its_time_is_over_it_is_an_error(machine):
    with pytest.raises(UserError, match="its time was over"):
        find_batch_size("toy:job", budget_s=1e-9)
    machine.failing = lambda asked: "killed by SIGKILL"
    with pytest.raises(UserError, match="No batch was found that trains"):
        find_batch_size("toy:job")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"job": "nothing"}, "reference is malformed"),
        ({"job": lambda: None}, "which make the job themselves"),
        ({"at_most": 0}, "at_most is not a count"),
        ({"budget_s": 0}, "budget_s must be a number above 0"),
        ({"under": "chain"}, "The chain is not a transform"),
    ],
)
def test_mistakes_are_refused_before_anything_is_started(machine, settings, words):
    with pytest.raises(UserError, match=words):
        find_batch_size(**{"job": "toy:job", **settings})
    assert not machine.children


# On real trainings.


@pytest.mark.slow
def test_a_search_on_real_trainings(folder, capsys):
    assert main(["batch-size", "sizes_jobs:small", "--at-most", "16", "--output", "out"]) == 0
    assert "batch 16: trains" in capsys.readouterr().out
    found = json.loads((folder / "out/batch_size.json").read_text())
    assert (found["largest"], found["stopped"]) == (16, None)
    assert found["tried"][0]["examples_per_s"] > 0
    assert found["tried"][0]["peak_mib"] > 100


def test_a_job_that_does_not_train_is_an_error_of_the_job(folder, monkeypatch):
    with pytest.raises(UserError, match="No batch was found that trains") as raised:
        find_batch_size("sizes_jobs:broken", at_most=8)
    assert str(raised.value).count("the loss has no head") == 1
    with pytest.raises(UserError, match="cannot be built") as raised:
        find_batch_size("sizes_jobs:greedy")
    assert "Unable to allocate" in str(raised.value)
    # A process that takes more than it may ends itself.
    monkeypatch.setattr(search, "available_memory", lambda: Memory(100 * MIB, "made"))
    with pytest.raises(UserError, match=r"MiB, more than its limit of 90 MiB"):
        find_batch_size("sizes_jobs:small", at_most=8)
