"""A worker process by itself: its result, its last words, and that it ends with what it started."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import toy_jobs
from processes import wait_until, workers_in

from tfopt import Execution, MixedPrecision, chain
from tfopt.measure.blocks import Span
from tfopt.measure.process import run_worker
from tfopt.measure.tasks import OneBlock, Training, task_from_dict, task_to_dict
from tfopt.measure.worker import WITH_PARENT, _message


def run(trouble, **settings):
    return run_worker(
        Training(), job="toy_jobs:troubled", arguments={"trouble": trouble}, **settings
    )


@pytest.mark.parametrize(
    ("trouble", "status", "words"),
    [
        ("dies", "failed", "last words"),
        ("killed", "failed", "SIGKILL"),
        ("raises", "refused", "the disk of the data is gone"),
    ],
)
def test_a_worker_that_dies_gives_its_last_words(in_toy_folder, trouble, status, words):
    result = run(trouble)
    assert result.status == status
    assert words in result.reason
    assert result.value is None


def test_an_error_of_the_training_names_its_place():
    with pytest.raises(TypeError) as raised:
        toy_jobs.data("many")
    words = _message(raised.value)
    assert re.search(r"integer.*\(toy_jobs.py, line \d+, in data\)", words)


def start(trouble, result, *flags, **settings):
    """The worker without its parent, which would wait for it: one that never ends is seen."""
    spec = {"job": "toy_jobs:troubled", "arguments": {"trouble": trouble}, "chain": []}
    spec |= {"skip_if_idle": False, "seed": None, "task": task_to_dict(Training())}
    Path("spec.json").write_text(json.dumps(spec))
    command = [sys.executable, "-m", "tfopt.measure.worker", "spec.json", result, *flags]
    return subprocess.Popen(command, text=True, start_new_session=True, **settings)


def test_sys_exit_is_an_error_and_ends_the_worker_though_a_thread_goes_on(in_toy_folder):
    assert start("exits", "result.json").wait(60) == 0
    result = json.loads(Path("result.json").read_text())
    assert result == {"error": "the job called sys.exit('no licence')", "user_error": False}


def test_a_result_that_cannot_be_written_ends_the_worker_too(in_toy_folder):
    worker = start("exits", "nowhere/result.json", stderr=subprocess.PIPE)
    _, printed = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "could not be written" in printed


def test_a_worker_ends_with_its_parent(in_toy_folder):
    worker = start("hangs", "result.json", WITH_PARENT, stdin=subprocess.PIPE)
    wait_until(Path("hangs").exists)
    worker.stdin.close()
    assert worker.wait(60) == -9


def test_a_forked_worker_ends_with_its_parent(in_toy_folder):
    code = "from test_worker import run; run('hangs', forked=True)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    wait_until(Path("hangs").exists)
    parent.kill()
    parent.wait()
    wait_until(lambda: not workers_in(in_toy_folder))


@pytest.mark.slow
def test_forked_workers_are_as_fresh_ones(in_toy_folder):
    assert "last words" in run("dies", forked=True).reason
    assert "SIGKILL" in run("killed", forked=True).reason
    assert run("leaves a child", forked=True).status == "refused"
    wait_until(lambda: not workers_in(in_toy_folder))

    def watch(pid):
        if Path("hangs").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("hangs", watch=watch, forked=True)
    assert not workers_in(in_toy_folder)
    task = OneBlock(Span(windows=1, window_ms=1.0, warm_up_s=0.0))
    drawn = [
        run_worker(task, job="toy_jobs:drawing", arguments={}, forked=True).value for _ in range(2)
    ]
    assert drawn[0].data != drawn[1].data  # random numbers
    assert all(block.start_s > 0.5 for block in drawn)  # the import


def test_what_a_module_sets_for_tensorflow_holds_in_a_forked_worker(in_toy_folder):
    task = OneBlock(Span(windows=1, window_ms=1.0, warm_up_s=0.0))
    block = run_worker(task, job="toy_jobs:set_up", arguments={}, forked=True).value
    assert "set before TensorFlow was loaded: True" in block.data


def test_a_process_that_the_job_leaves_behind_holds_nothing_up(in_toy_folder):
    assert run("leaves a child").status == "refused"
    wait_until(lambda: not workers_in(in_toy_folder))


@pytest.mark.parametrize("ends", ["text", "interrupt"])
def test_who_watches_ends_the_worker(in_toy_folder, ends):
    def watch(pid):
        if not Path("hangs").exists():
            return None
        if ends == "interrupt":
            raise KeyboardInterrupt
        return "it took too long"

    if ends == "text":
        result = run("hangs", watch=watch)
        assert (result.status, result.reason) == ("failed", "it took too long")
    else:
        with pytest.raises(KeyboardInterrupt):
            run("hangs", watch=watch)
    assert not workers_in(in_toy_folder)


# What the worker carries out, in this process.


def test_an_idle_precision_is_not_measured_again():
    steps = chain(Execution(steps_per_execution=2), MixedPrecision("float32"))
    task = task_from_dict(task_to_dict(OneBlock(Span())))
    done = task.carry_out(steps.apply(toy_jobs.job()), steps.parts[-1], lambda epoch, step: None)
    assert done.value is None
    transform, effect = done.effects[-1]
    assert transform == MixedPrecision("float32")
    assert "float32 already" in effect.note
