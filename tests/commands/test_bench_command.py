"""``tfopt bench`` as a person runs it: mistakes told at once, files left, Ctrl-C and --resume."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tfopt.commands.cli import main
from tfopt.report.bench_report import read_bench_report

JOB = """
    import keras
    import numpy as np
    from tfopt import Data, Job

    def job(width: int = 8) -> Job:
        def build():
            layers = [keras.Input((6,)), keras.layers.Dense(width), keras.layers.Dense(2, "softmax")]
            return keras.Sequential(layers)

        return Job(build=build, data=data, compile=compile_)

    def compile_():
        return {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}

    def data():
        x = np.random.default_rng(0).normal(size=(12800, 6)).astype("float32")
        return Data(train=(x, (x.sum(axis=1) > 0).astype("int64")), name="toy")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "toy_pkg.py").write_text(textwrap.dedent(JOB))
    (tmp_path / "one.toml").write_text('tfopt = 1\n[[chain]]\ntransform = "pipeline"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "One thing is measured at a time"),
        (["a:b", "--only", "c:d", "e:f"], "One thing is measured at a time"),
        (["toy_pkg:job", "--rounds", "many"], "--rounds takes one or two numbers"),
        (["toy_pkg:job", "--rounds", "1"], "This budget has no room"),
        (["toy_pkg:job", "--seeds", "-1"], "--seeds is not a count"),
        (["toy_pkg:job", "--tolerance", "nan"], "--tolerance is no number of points"),
        (["toy_pkg:job", "--ablate"], "--ablate leaves links out of a chain"),
        (["toy_pkg:job", "--ablate", "--chain", "one.toml"], "--ablate leaves links out"),
        (["--only", "a:b", "c:d", "--chain", "one.toml"], "--chain is for one job"),
        (["toy_pkg:job", "--set", "width"], "--set takes NAME=VALUE"),
        (["toy_pkg:job", "--resume"], "There is nothing to resume"),
        (["toy_pkg:job", "--set", "wide=3"], "unexpected keyword argument 'wide'"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(folder, capsys, arguments, told):
    assert main(["bench", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not list(folder.glob("*_bench/bench.*"))


@pytest.mark.slow
def test_a_measurement_leaves_its_files_and_goes_on_after_ctrl_c(folder):
    """One job alone: a rehearsal, two blocks; stopped in the second."""
    flags = "--set width=4 --quick --rounds 2 --studies 0 --output out"
    command = [sys.executable, "-m", "tfopt", "bench", "toy_pkg:job", *flags.split()]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    stopped = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 180
    first = "out/blocks/*-000-00.json"
    while not list(folder.glob(first)) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    stopped.send_signal(signal.SIGINT)
    told, _ = stopped.communicate(timeout=60)
    assert stopped.returncode == 130
    assert "go on with --resume" in told
    assert not read_bench_report(folder / "out/bench.json").complete

    resumed = [*command, "--resume"]
    done = subprocess.run(resumed, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert "rehearsing" not in done.stdout
    assert done.stdout.count("ms a step\n") == 1
    report = read_bench_report(folder / "out/bench.json")
    assert report.complete
    assert report.asked.quick
    assert len(report.reference.blocks) == 2
    assert report.reference.arguments == {"width": "4"}
    assert report.command.startswith("tfopt bench toy_pkg:job --set width=4 --quick")
    assert (folder / "out/bench.html").read_text().startswith("<!DOCTYPE html>")
    assert "A step takes" in (folder / "out/bench.md").read_text()
    json.loads((folder / "out/blocks/plan.json").read_text())
