"""Searches in real processes: under a real limit, killed, hanging, crashing, stopped and resumed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import tfopt
from tfopt import Accumulate, Distribute, Job, UserError, chain, find_batch_size
from tfopt.commands.cli import main
from tfopt.measure.batch_size.rebatched import reference_of

JOB = """
    import os, signal, time
    import keras, numpy as np, tensorflow as tf
    from tfopt import Data, Job
    from tfopt.job.parts import Effect

    L = keras.layers

    def wide() -> Job:
        "Some 8 MiB of activations an example."
        def build():
            inputs = keras.Input((16,))
            x = L.RepeatVector(1 << 15)(L.Dense(16)(inputs))
            for _ in range(3):
                x = L.Activation("tanh")(x)
            return keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling1D()(x)))
        def data():
            x, y = np.ones((512, 16), "float32"), np.ones((512, 1), "float32")
            return Data(train=(x, y), validation=(x[:64], y[:64]))
        return Job(build=build, data=data, compile=plain, batch_size=64)

    def plain():
        return {"optimizer": "adam", "loss": "mse", "jit_compile": False}

    def build():
        return keras.Sequential([keras.Input((4,)), L.Dense(1)])

    def data():
        return Data(train=(np.ones((200, 4), "float32"), np.ones((200, 1), "float32")))

    def small() -> Job:
        return Job(build=build, data=data, compile=plain)

    def unlucky() -> Job:
        def meets(model, facts):
            batch = facts.batch_size
            if batch == 64:
                tf.zeros([1 << 24, 1 << 24])
            if batch == 48:
                os.kill(os.getpid(), signal.SIGKILL)
            if batch == 40:
                time.sleep(600)
            if batch == 36:
                os.abort()
            return Effect(True, "")
        return small().with_(attachments=(meets,))

    def broken() -> Job:
        def loss(y, predicted):
            raise ValueError("the loss has no head")
        return small().with_(compile=lambda: {"loss": loss})
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "sizes_pkg.py").write_text(textwrap.dedent(JOB))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_limit_is_found_by_the_command_which_goes_on_after_ctrl_c(folder):
    """64 takes some 1,150 MiB, 128 some 1,660."""
    command = [sys.executable, "-m", "tfopt.commands.cli", "batch-size", "--job", "sizes_pkg:wide"]
    command += ["--limit-mib", "1400", "--multiple-of", "32", "--repeats", "1", "--output", "out"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as stopped:
        try:
            deadline = time.monotonic() + 200
            while not (folder / "out/trials/trial-000.json").exists():
                assert stopped.poll() is None, stopped.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            stopped.send_signal(signal.SIGINT)
            _, told = stopped.communicate(timeout=60)
        finally:
            stopped.kill()
    assert stopped.returncode == 130
    assert "go on with --resume" in told
    assert "batch 64: trains" in told

    resumed = subprocess.run(
        [*command, "--resume", "--json", "--plot", "sizes.svg"],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    found = json.loads(resumed.stdout)
    tried = {each["batch"]: each for each in found["tried"]}
    assert found["largest"] in (64, 96)
    assert tried[64]["peak_mib"] < 1400
    assert tried[128]["kind"] == "memory"
    assert "more than the 1,400 MiB it may" in tried[128]["reason"]
    assert set(tried) <= {64, 96, 128}
    best = tried[found["largest"]]
    assert best["processes"] == 2
    assert best["least_per_s"] <= best["examples_per_s"] <= best["most_per_s"]
    assert (found["own_batch"], found["device"], found["stopped"]) == (64, "CPU", None)
    assert (folder / "sizes.svg").read_text().startswith("<?xml")
    assert json.loads((folder / "out/batch_size.json").read_text()) == found
    assert not workers()


def workers():
    """Trials that are still there, of this test's own folder."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
                here = os.readlink(f"/proc/{entry}/cwd") == os.getcwd()
            except OSError:
                continue
            if b"tfopt.measure.worker" in line and here:
                found.append(entry)
    return found


@pytest.mark.slow
def test_trials_that_die_are_failed_trials_with_their_reasons(folder):
    told = []
    found = find_batch_size(
        "sizes_pkg:unlucky", multiple_of=4, repeats=0, trial_s=75, folder="kept", tell=told.append
    )
    assert found.largest == found.fastest == 32
    kinds = {each.batch: each.kind for each in found.tried}
    assert kinds == {32: "trained", 64: "memory", 48: "memory", 40: "time", 36: "crash"}
    reasons = {each.batch: each.reason for each in found.tried}
    assert "1,073,741,824.0 MiB for a float32 tensor of shape" in reasons[64]
    assert "killed by SIGKILL" in reasons[48]
    assert "not done within 75 s" in reasons[40]
    assert "SIGABRT" in reasons[36]
    assert [each.batch for each in told] == [32, 64, 48, 40, 36]
    # With everything kept, no process is needed; of another search, nothing is taken.
    told.clear()
    again = find_batch_size(
        "sizes_pkg:unlucky", multiple_of=4, repeats=0, trial_s=75, folder="kept", resume=True,
        tell=told.append,
    )  # fmt: skip
    assert told == []
    assert again.tried == found.tried
    with pytest.raises(UserError, match=r"settings \(multiple of\)"):
        find_batch_size("sizes_pkg:unlucky", repeats=0, trial_s=75, folder="kept", resume=True)


@pytest.mark.slow
def test_a_search_that_goes_on_keeps_its_limit_and_one_that_begins_anew_says_so(folder, capsys):
    found = find_batch_size("sizes_pkg:small", at_most=8, repeats=0, folder="kept")
    held = b"x" * (200 << 20)  # so that less is free now
    again = find_batch_size("sizes_pkg:small", at_most=8, repeats=0, folder="kept", resume=True)
    assert again.limit_mib == found.limit_mib
    assert again == found
    del held
    command = ["batch-size", "--job", "sizes_pkg:small", "--at-most", "8", "--repeats", "0"]
    assert main([*command, "--output", "kept"]) == 0
    told = capsys.readouterr().err
    assert "1 trial of an earlier search" in told
    assert "--resume" in told


@pytest.mark.slow
def test_replicas_and_micro_batches_are_told(folder):
    found = find_batch_size(
        "sizes_pkg:small",
        under=chain(Distribute(logical_cpus=2, per_replica_batch=8), Accumulate(2)),
        multiple_of=3,
        at_most=20,
        repeats=0,
    )
    assert (found.replicas, found.accumulate, found.own_batch) == (2, 2, 16)
    assert [each.batch for each in found.tried] == [12, 18]
    assert found.largest == 18


def test_a_job_that_does_not_train_is_told_as_such(folder):
    with pytest.raises(UserError, match="not for want of memory") as raised:
        find_batch_size("sizes_pkg:broken")
    assert str(raised.value).count("the loss has no head") == 1
    with pytest.raises(UserError, match="There is no batch size to try") as raised:
        find_batch_size("sizes_pkg:small", multiple_of=300)
    assert "200 examples" in raised.value.received


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"job": "nothing"}, "reference is malformed"),
        ({"job": 3}, "has to make the job anew"),
        ({"job": lambda: None}, "has to make the job anew"),
        ({"multiple_of": 0}, "multiple_of is not a count"),
        ({"multiple_of": 8, "power_of_two": True}, "either powers of two or multiples"),
        ({"power_of_two": 1}, "power_of_two is a switch"),
        ({"limit_mib": float("nan")}, "limit_mib is not a size"),
        ({"at_most": -1}, "at_most is not a count"),
        ({"trial_s": 0}, "trial_s is not a time"),
        ({"repeats": -1}, "repeats is not a count"),
        ({"under": "chain"}, "under= is no transform"),
        ({"resume": True}, "nothing to resume"),
    ],
)
def test_mistakes_are_told_before_anything_is_started(settings, told):
    with pytest.raises(UserError, match=told):
        find_batch_size(**{"job": "a.b:c", **settings})


def test_the_command_tells_mistakes_too(folder, capsys):
    assert main(["batch-size", "--job", "sizes_pkg:small", "--plot", "a.gif"]) == 2
    assert main(["batch-size", "--job", "sizes_pkg:small", "--resume"]) == 2
    told = capsys.readouterr().err
    assert "written as a picture" in told
    assert "nothing to resume" in told


def a_job() -> Job:
    raise AssertionError("a reference runs nothing")


def test_a_function_goes_by_its_name(monkeypatch):
    assert reference_of(a_job) == f"{__name__}:a_job"
    assert reference_of("my.train:job") == "my.train:job"
    with pytest.raises(UserError, match="has to make the job anew"):
        reference_of(tfopt.Job(build=a_job, data=a_job, compile=dict))


def test_a_search_that_its_own_trials_would_start_is_refused(folder):
    (folder / "recursive.py").write_text(
        "import tfopt\nfrom sizes_pkg import small as job\ntfopt.find_batch_size(job)\n"
    )
    with pytest.raises(UserError, match="under if __name__ == '__main__'"):
        find_batch_size("recursive:job")
