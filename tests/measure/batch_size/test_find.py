"""The search: which size is tried next, and what becomes of trials that fail, in any way."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sizes_jobs
from made_modes import job_facts
from processes import wait_until, workers_in

from tfopt import Accumulate, Distribute, Job, UserError, chain, find_batch_size
from tfopt.measure.batch_size import trial
from tfopt.measure.batch_size.find import Grid, next_size
from tfopt.measure.batch_size.trial import Attempt, Limits, Trial
from tfopt.measure.process import WorkerResult
from tfopt.measure.rebatched import reference_of


def searched(grid, start, trains):
    """The largest size that trains, and all that were tried."""
    tried = {}
    while True:
        passed = [size for size in tried if tried[size]]
        size = next_size(grid, start, passed, [size for size in tried if not tried[size]])
        if size is None:
            return max(passed, default=None), tried
        assert size not in tried
        assert size == grid.floor(size) > 0
        tried[size] = trains(size)
        assert len(tried) < 25


@pytest.mark.parametrize("unit", [1, 6, 8])
@pytest.mark.parametrize("start", [1, 32, 100])
def test_the_largest_multiple_is_found(unit, start):
    for threshold in range(1, 300, 7):
        found, tried = searched(Grid(unit), start, lambda size: size <= threshold)  # noqa: B023
        assert (found or 0) == threshold // unit * unit
        assert all(size in tried for size in ([found + unit] if found else [unit]))


@pytest.mark.parametrize(
    ("grid", "start", "threshold", "found"),
    [
        (Grid(1, True), 32, 1000, 512),
        (Grid(3, True), 32, 100, 96),
        (Grid(8, most=100), 32, 10**9, 96),
        (Grid(1, True, most=100), 512, 10**9, 64),
        # The job's own batch may be off the grid.
        (Grid(8), 5, 19, 16),
    ],
)
def test_powers_of_two_and_an_end(grid, start, threshold, found):
    assert searched(grid, start, lambda size: size <= threshold)[0] == found


def test_few_trials_are_needed_and_what_failed_below_is_passed_over():
    assert len(searched(Grid(8), 32, lambda size: size <= 1016)[1]) <= 12
    assert next_size(Grid(8), 32, passed={64}, failed={32}) == 128


# With made-up workers.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return tmp_path


def died(how):
    return WorkerResult("failed", None, f"the process ended without a result: {how}", {})


def outcomes(workers, **of_batches):
    """Answers of trials by their batch, as ``b64=...``; others train."""

    def answer(asked):
        if asked.kind != "batch-trial":
            return None
        given = of_batches.get(f"b{asked.task.batch}")
        if given == "time":
            asked.watch.ended = "time"
            return "not done within 75 s"
        if isinstance(given, Attempt):
            return workers.measured(replace(given, batch=asked.task.batch))
        return given

    workers.answer = answer


def out_of_memory(reason="it asked for too much"):
    return Attempt(0, "memory", reason)


def kinds(found):
    return {each.batch: each.kind for each in found.tried}


def test_trials_that_die_are_failed_trials_with_their_reasons(folder, workers):
    failing = {
        64: (out_of_memory("a float32 tensor"), "memory", "a float32 tensor"),
        48: (died("killed by SIGKILL"), "memory", "SIGKILL"),
        40: ("time", "time", "not done within 75 s"),
        36: (died("killed by SIGABRT"), "crash", "SIGABRT"),
    }
    outcomes(workers, **{f"b{size}": answer for size, (answer, *_) in failing.items()})
    settings = {"multiple_of": 4, "repeats": 0, "trial_s": 75}
    heard = []
    found = find_batch_size("a.b:c", tell=heard.append, **settings)
    assert found.largest == found.fastest == 32
    assert kinds(found) == {32: "trained", **{size: kind for size, (_, kind, _) in failing.items()}}
    reasons = {each.batch: each.reason for each in found.tried}
    assert all(words in reasons[size] for size, (*_, words) in failing.items())
    assert [each.batch for each in heard] == [32, *failing]


def test_an_interrupted_search_tells_what_was_found_by_then(folder, workers):
    def answer(asked):
        if asked.kind == "batch-trial" and asked.task.batch == stops_at:
            raise KeyboardInterrupt

    workers.answer, stops_at = answer, 128
    found = find_batch_size("a.b:c")
    assert found.interrupted
    assert (found.largest, kinds(found)) == (64, {32: "trained", 64: "trained"})
    assert "was interrupted" in str(found)
    stops_at = 32
    with pytest.raises(KeyboardInterrupt):
        find_batch_size("a.b:c")


def test_the_fastest_are_measured_again_and_what_then_fails_does_not_train(folder, workers):
    outcomes(workers, b128=out_of_memory())
    found = find_batch_size("a.b:c", at_most=128, multiple_of=32, repeats=2)
    assert {each.batch: each.processes for each in found.tried} == {32: 3, 64: 3, 96: 3, 128: 1}
    assert (found.largest, found.fastest, found.own_batch) == (96, 96, 32)

    def answer(asked):
        again = workers.kinds().count("batch-trial") > 4
        return died("killed by SIGKILL") if again and asked.task.batch == 96 else None

    workers.asked.clear()
    workers.answer = answer
    assert find_batch_size("a.b:c", at_most=96, multiple_of=32, repeats=2).largest == 64


def test_a_process_that_held_more_than_it_may_does_not_train(folder, workers):
    found = find_batch_size("a.b:c", limit_mib=600, multiple_of=32, repeats=0, at_most=128)
    assert kinds(found) == {32: "trained", 64: "trained", 96: "trained", 128: "memory"}
    assert "held 628 MiB, more than the 600 MiB it may" in found.tried[-1].reason


def test_a_search_ends_after_so_many_trials_or_so_long(folder, workers):
    found = find_batch_size("a.b:c", most_trials=2, repeats=0)
    assert [each.batch for each in found.tried] == [32, 64]
    assert "ended after 2 trials" in found.stopped
    with pytest.raises(UserError, match="its time was over"):
        find_batch_size("a.b:c", within_s=1e-9)


def test_where_nothing_trains_it_is_an_error(folder, workers):
    outcomes(workers, **{f"b{size}": out_of_memory() for size in (8, 16, 32)})
    with pytest.raises(UserError, match="Not even a batch of 8 trains within"):
        find_batch_size("a.b:c")


def test_a_gpu_gets_its_limit_by_tensorflow(folder, workers):
    def answer(asked):
        if asked.kind == "job-look":
            return workers.measured(job_facts(examples=64, gpus=1))
        assert asked.task.gpu_limit_mib == 900
        return workers.measured(Attempt(asked.task.batch, "trained", None, 700.0, 1.0, 100.0))

    workers.answer = answer
    found = find_batch_size("a.b:c", limit_mib=900, repeats=0)
    assert (found.device, found.largest, found.tried[0].peak_mib) == ("GPU", 64, 700.0)


def test_replicas_and_micro_batches_count(folder, workers):
    workers.answer = lambda asked: (
        workers.measured(job_facts(batch_size=16, tuned_batch_size=16, replicas=2, accumulate=2))
        if asked.kind == "job-look"
        else None
    )
    found = find_batch_size(
        "a.b:c",
        under=chain(Distribute(logical_cpus=2, per_replica_batch=8), Accumulate(2)),
        multiple_of=3,
        at_most=20,
        repeats=0,
    )
    assert (found.replicas, found.accumulate, found.own_batch) == (2, 2, 16)
    assert [each.batch for each in found.tried] == [12, 18]
    assert found.largest == 18
    with pytest.raises(UserError, match="There is no batch size to try") as raised:
        find_batch_size("a.b:c", multiple_of=300)
    assert "200 examples" in raised.value.received


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"job": "nothing"}, "reference is malformed"),
        ({"job": lambda: None}, "has to make the job anew"),
        ({"multiple_of": 0}, "multiple_of is not a count"),
        ({"multiple_of": 8, "power_of_two": True}, "either powers of two or multiples"),
        ({"power_of_two": 1}, "power_of_two is a switch"),
        ({"limit_mib": float("nan")}, "limit_mib is not a size"),
        ({"trial_s": 0}, "trial_s is not a time"),
        ({"under": "chain"}, "This is no chain"),
    ],
)
def test_mistakes_are_refused_before_anything_is_started(workers, settings, words):
    with pytest.raises(UserError, match=words):
        find_batch_size(**{"job": "a.b:c", **settings})
    assert workers.asked == []


def a_job() -> Job:
    raise AssertionError("a reference runs nothing")


def test_a_function_goes_by_its_name(monkeypatch):
    assert reference_of(a_job) == f"{__name__}:a_job"
    assert reference_of("my.train:job") == "my.train:job"
    with pytest.raises(UserError, match="has to make the job anew"):
        reference_of(Job(build=a_job, data=a_job, compile=dict))
    # A search that its own trials would start again.
    worker = type("Spec", (), {"name": "tfopt.measure.worker"})
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", worker)
    with pytest.raises(UserError, match="under if __name__ == '__main__'"):
        reference_of(a_job)


# On real trainings.


def test_a_job_that_does_not_train_is_an_error_of_the_job(folder, workers_in_process):
    with pytest.raises(UserError, match="not for want of memory") as raised:
        find_batch_size("sizes_jobs:broken")
    assert str(raised.value).count("the loss has no head") == 1


def test_an_array_too_large_is_a_trial_that_failed_for_want_of_memory(monkeypatch):
    monkeypatch.setattr(trial, "_end_first_where_memory_ends", lambda: None)
    task = Trial(8, None, False, None)
    done = task.carry_out(sizes_jobs.greedy(), None, lambda *_: None)
    reason = task.read(json.loads(json.dumps(done.value))).reason
    assert "1,073,741,824.0 MiB for a float32 tensor of shape" in reason


def test_a_watch_ends_what_holds_too_much_or_takes_too_long():
    assert Limits(None, 60)(os.getpid()) is None
    late, large = Limits(None, 0), Limits(10, 60)
    assert "not done within 0 s" in late(os.getpid())
    assert "more than the 10 MiB it may" in large(os.getpid())
    assert (late.ended, large.ended) == ("time", "memory")


@pytest.mark.parametrize(
    "where", ["in this process", pytest.param("in processes", marks=pytest.mark.slow)]
)
def test_a_search_on_real_trainings(request, folder, where):
    if where == "in this process":
        request.getfixturevalue("workers_in_process")
    found = find_batch_size("sizes_jobs:small", at_most=8, repeats=0)
    assert (found.largest, found.device, found.stopped) == (8, "CPU", None)
    assert found.tried[0].examples_per_s > 0
    assert found.tried[0].peak_mib > 100


@pytest.mark.slow
def test_a_limit_is_found_by_the_command(folder):
    """64 takes some 1,250 MiB, 128 some 1,760."""
    command = [sys.executable, "-m", "tfopt.commands.cli", "batch-size", "--job", "sizes_jobs:wide"]
    command += ["--limit-mib", "1500", "--multiple-of", "32", "--repeats", "1", "--output", "out"]
    done = subprocess.run(
        [*command, "--json"],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    tried = {each["batch"]: each for each in found["tried"]}
    assert found["largest"] in (64, 96)
    assert tried[64]["peak_mib"] < 1500
    assert tried[128]["kind"] == "memory"
    assert "more than the 1,500 MiB it may" in tried[128]["reason"]
    assert set(tried) <= {64, 96, 128}
    best = tried[found["largest"]]
    assert best["processes"] == 2
    assert best["least_per_s"] <= best["examples_per_s"] <= best["most_per_s"]
    assert (found["own_batch"], found["device"], found["stopped"]) == (64, "CPU", None)
    assert json.loads((folder / "out/batch_size.json").read_text()) == found


@pytest.mark.slow
def test_the_command_tells_what_it_found_before_ctrl_c(folder):
    command = [sys.executable, "-m", "tfopt.commands.cli", "batch-size", "--output", "out"]
    command += ["--job", "sizes_jobs:small"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as stopped:
        try:
            while "trains" not in stopped.stderr.readline():
                assert stopped.poll() is None
            stopped.send_signal(signal.SIGINT)
            printed, complaint = stopped.communicate(timeout=60)
        finally:
            stopped.kill()
    assert stopped.returncode == 130, complaint
    assert "was interrupted" in printed, complaint
    assert json.loads((folder / "out/batch_size.json").read_text())["largest"] >= 32
    wait_until(lambda: not workers_in(folder))
