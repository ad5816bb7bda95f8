"""The search: which size is tried next, and what becomes of trials that fail, in any way."""

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import sizes_jobs
from processes import processes_in, wait_until

from tfopt import UserError, find_batch_size
from tfopt.data.host_memory import MIB, Memory
from tfopt.measure.engine import Candidate
from tfopt.measure.turn_taking import Peaks, Ready, Turn
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


# With an engine that is none.


class Machine:
    """What trainings take and how they end, in the place of the engine.

    Attributes:
        ends: By batch, the reasons why its processes end, the trial's first; "" for none.
        room: How many processes are alive at once.
        speed: Examples a millisecond, by batch.
    """

    def __init__(self, **facts):
        self.facts = sizes_jobs.facts(**facts)
        self.ends, self.room, self.speed = {}, 99, {}
        self.admitted = []

    def carried_out(self, target, task):
        return self.facts

    def __call__(self, display):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def admit(self, variants, until=None):
        taken = variants[: self.room]
        self.admitted.append([each.way for each in taken])
        return [self.started(each, n) for n, each in enumerate(taken)]

    def started(self, variant, number):
        batch = variant.way.batch
        reasons = self.ends.get(batch, [])
        reason = reasons.pop(0) if reasons else ""
        if reason is KeyboardInterrupt:
            raise KeyboardInterrupt
        step_s = batch / self.speed.get(batch, 100.0 + batch / 10) / 1000
        step_s *= 1 + 0.001 * (number % 3)
        gpu_mib = 300.0 + batch if self.facts.gpus else None
        reasons = {"energy_per_example_j": "no GPU"} | ({} if gpu_mib else {"gpu_peak_mib": "none"})
        peaks = Peaks(500.0 + batch, gpu_mib, None, (), reasons)
        ready = Ready(1.0, 1.0, 1, batch, 1, None, None, "", {}, frozenset())
        turns = {} if reason else {0: Turn(1, step_s, step_s, peaks)}
        return Candidate(variant, ready=ready, turns=turns, out=reason)

    def take_rounds(self, candidates, rounds, **_):
        return rounds


@pytest.fixture
def machine(monkeypatch):
    return installed(monkeypatch, Machine())


def installed(monkeypatch, machine):
    monkeypatch.setattr(search, "Engine", machine)
    monkeypatch.setattr(search, "carried_out", machine.carried_out)
    return machine


def died(how, words="none"):
    return f"the process ended without a result: {how}; its last words: {words}"


OVER = "the process held 901 MiB, more than the 900 MiB it may"


def test_trials_that_die_are_failed_trials_with_their_reasons(machine):
    for reason in (died("exit code 1", f"a | {OVER}"), died("killed by SIGKILL"), "a\nb"):
        machine.ends[64] = [reason]
        found = find_batch_size("a.b:c", at_most=64)
        assert found.largest == 56
        assert (found.tried[-1].batch, found.tried[-1].reason) == (64, " ".join(reason.split()))
    machine.ends[64] = ["ValueError: " + "x " * 1000]
    assert len(find_batch_size("a.b:c", at_most=64).tried[-1].reason) <= 400


def test_the_largest_and_the_fastest_take_turns(machine):
    machine.speed = {64: 200.0}
    found = find_batch_size("a.b:c", at_most=128)
    assert [way.batch for way in machine.admitted[-1]] == [128] * 2 + [64] * 2
    assert {each.batch: each.processes for each in found.tried} == {32: 0, 64: 2, 128: 2}
    assert (found.largest, found.fastest) == (128, 64)
    assert (found.comparison.verdict, found.comparison.processes) == ("faster", 2)


@pytest.mark.parametrize("room", [1, 3])
def test_what_does_not_fit_together_is_told_by_its_own_trial(machine, room):
    machine.speed, machine.room = {64: 200.0}, room
    found = find_batch_size("a.b:c", at_most=128)
    assert (found.largest, found.fastest, found.comparison) == (128, 64, None)
    assert "measured once: no difference from the largest is certain" in str(found)


def test_an_interrupted_search_tells_what_was_found_by_then(machine):
    machine.ends[128] = [KeyboardInterrupt]
    found = find_batch_size("a.b:c")
    assert found.interrupted
    assert [(each.batch, each.passed) for each in found.tried] == [(32, True), (64, True)]
    assert "was interrupted" in str(found)
    machine.ends[32] = [KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        find_batch_size("a.b:c")


def test_on_a_cpu_a_process_may_take_nine_tenths_of_what_is_free(machine, monkeypatch):
    monkeypatch.setattr(search, "available_memory", lambda: Memory(1000 * MIB, "made"))
    assert find_batch_size("a.b:c", at_most=32).limit_mib == 900
    assert machine.admitted[-1][0].limit_mib == 900
    machine = installed(monkeypatch, Machine(gpus=1, examples=64))
    found = find_batch_size("a.b:c")
    assert [each.peak_mib for each in found.tried] == [332.0, 364.0]
    assert machine.admitted[-1][0].limit_mib is None


def test_where_nothing_trains_or_its_time_is_over_it_is_an_error(machine):
    with pytest.raises(UserError, match="its time was over"):
        find_batch_size("a.b:c", budget_s=1e-9)
    machine.ends = {size: [died("killed by SIGKILL")] for size in (8, 16, 32)}
    with pytest.raises(UserError, match="No batch was found that trains"):
        find_batch_size("a.b:c")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"job": "nothing"}, "reference is malformed"),
        ({"job": lambda: None}, "has to make the job anew"),
        ({"at_most": 0}, "at_most is not a count"),
        ({"budget_s": 0}, "budget_s must be a number above 0"),
        ({"under": "chain"}, "This is no chain"),
    ],
)
def test_mistakes_are_refused_before_anything_is_started(machine, settings, words):
    with pytest.raises(UserError, match=words):
        find_batch_size(**{"job": "a.b:c", **settings})
    assert machine.admitted == []


# On real trainings.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    return tmp_path


def test_a_search_on_real_trainings(folder, capsys):
    found = find_batch_size("sizes_jobs:small", at_most=16, verbose=True)
    assert (found.largest, found.stopped) == (16, None)
    assert found.tried[0].examples_per_s > 0
    assert found.tried[0].peak_mib > 100
    assert "batch 16: trains" in capsys.readouterr().out


def test_a_job_that_does_not_train_is_an_error_of_the_job(folder):
    with pytest.raises(UserError, match="No batch was found that trains") as raised:
        find_batch_size("sizes_jobs:broken", at_most=8)
    assert str(raised.value).count("the loss has no head") == 1
    with pytest.raises(UserError, match="cannot be built") as raised:
        find_batch_size("sizes_jobs:greedy")
    assert "Unable to allocate" in str(raised.value)


@pytest.mark.slow
def test_what_takes_more_than_there_is_ends_itself(folder, monkeypatch):
    """128 takes some 1,400 MiB."""
    monkeypatch.setattr(search, "available_memory", lambda: Memory(1667 * MIB, "made"))
    found = find_batch_size("sizes_jobs:wide", at_most=160)
    tried = {each.batch: each for each in found.tried}
    assert 128 <= found.largest < 160
    assert tried[128].peak_mib < 1500
    assert "more than the 1,500 MiB it may" in tried[160].reason


@pytest.mark.slow
def test_the_command_tells_what_it_found_before_ctrl_c(folder):
    command = [sys.executable, "-m", "tfopt.commands.cli", "batch-size", "sizes_jobs:small"]
    with subprocess.Popen(
        [*command, "--output", "out"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as stopped:
        try:
            while "trains" not in stopped.stdout.readline():
                assert stopped.poll() is None
            stopped.send_signal(signal.SIGINT)
            printed, complaint = stopped.communicate(timeout=60)
        finally:
            stopped.kill()
    assert stopped.returncode == 130, complaint
    assert "was interrupted" in printed, complaint
    assert json.loads((folder / "out/batch_size.json").read_text())["largest"] >= 32
    wait_until(lambda: not processes_in(folder))
