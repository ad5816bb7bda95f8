"""A slowdown of 5 % planted into a job, measured for real, and what the gate makes of it."""

import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import bench_reports
import pytest

from tfopt.commands.arguments import INCONCLUSIVE
from tfopt.measure.blocks import Span
from tfopt.measure.rounds import Budget, RoundsPlan, measure_rounds
from tfopt.measure.variant import Variant
from tfopt.report.bench.bench_report import write_bench_report

# A step ends every 20 ms, however long its computation took: on a busy machine too, the planted
# slowdown is all there is.
JOB = """
    import time

    import keras
    import numpy as np
    from tfopt import Data, Job

    STEP_S = 0.02

    class Pace(keras.callbacks.Callback):
        def __init__(self, slower):
            super().__init__()
            self.period = STEP_S * (1 + slower)
            self.due = None

        def on_train_batch_end(self, batch, logs=None):
            now = time.perf_counter()
            # What was late is caught up with, but for what took as long as the first step.
            due = now if self.due is None else self.due + self.period
            self.due = due if now - due < 0.3 else now
            time.sleep(max(0.0, self.due - now))

    def job(slower=0.0) -> Job:
        return Job(build=build, data=data, compile=compile_, callbacks=(lambda: Pace(slower),))

    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, "softmax")])

    def compile_():
        return {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}

    def data():
        x = np.random.default_rng(0).normal(size=(25600, 6)).astype("float32")
        return Data(train=(x, (x.sum(axis=1) > 0).astype("int64")), name="toy")
"""
# More where a busy machine leaves it open.
ROUNDS = (3, 6)


class Silent:
    def block_starts(self, variant, round_):
        pass

    def block_ended(self, variant, block):
        pass

    def left_out(self, variant, reason):
        raise AssertionError(reason)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The files of three measurements: the job, the job again, and the job 5 % slower."""
    folder = tmp_path_factory.mktemp("gate")
    (folder / "gate_pkg.py").write_text(textwrap.dedent(JOB))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        asked = {"base": 0.0, "slower": 0.05, "again": 0.0}
        for rounds in ROUNDS:
            paths = (folder / f"{rounds}" / f"{name}.json" for name in asked)
            with ThreadPoolExecutor(2) as pool:  # they sleep: nobody is in anybody's way
                made = pool.map(partial(measured, rounds), paths, asked.values())
                found = dict(zip(asked, made, strict=True))
            tried = (gate(found["base"], found[name]) for name in ("slower", "again"))
            if all(done.returncode != INCONCLUSIVE for done in tried):
                break
        return found


def measured(rounds, path, slower):
    """Fresh processes, as `tfopt bench` starts them, written as it writes them."""
    path.parent.mkdir(exist_ok=True)
    plan = RoundsPlan(
        (Variant("baseline", "gate_pkg:job", arguments={"slower": slower}),),
        span=Span(windows=11, window_ms=200.0, warm_up_s=0.7),
        budget=Budget(at_least=rounds, at_most=rounds),
    )
    blocks = measure_rounds(plan, path.with_suffix(""), Silent()).blocks("baseline")
    report = bench_reports.report(
        bench_reports.variant("baseline", blocks, arguments={"slower": str(slower)}),
        title="gate_pkg:job",
        data=blocks[0].data,
    )
    return write_bench_report(report, path)


def gate(*arguments, limit="3%"):
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tfopt.commands.cli",
            "gate",
            *map(str, arguments),
            "--max-slowdown",
            limit,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_planted_slowdown_fails_the_run(reports):
    done = gate(reports["base"], reports["slower"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "baseline: regression: +" in done.stdout
    assert done.stdout.endswith("gate: regression\n")
    assert "argument slower" in gate_differences(reports)


def gate_differences(reports):
    """What the other command tells of the two."""
    done = subprocess.run(
        [sys.executable, "-m", "tfopt.commands.cli", "compare", "--format", "json"]
        + [str(reports[name]) for name in ("base", "slower")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (line,) = json.loads(done.stdout)["lines"]
    assert line["comparison"]["verdict"] == "slower"
    assert line["comparison"]["ratio"] == pytest.approx(1.05, abs=0.02)
    return [difference["what"] for difference in line["differences"]]


@pytest.mark.slow
def test_the_same_job_again_passes(reports):
    done = gate(reports["base"], reports["again"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is not in the intervals" in done.stdout


# A hundred times the work and more: no load of the machine makes up for that.
TWO_JOBS = """
    import keras
    import numpy as np
    from tfopt import Data, Job

    def base() -> Job:
        return Job(build=lambda: build(1), data=data, compile=compile_)

    def slower() -> Job:
        return Job(build=lambda: build(4), data=data, compile=compile_)

    def build(layers):
        wide = [keras.layers.Dense(128 if layers == 1 else 1024) for _ in range(layers)]
        return keras.Sequential([keras.Input((64,)), *wide, keras.layers.Dense(2, "softmax")])

    def compile_():
        return {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy"}

    def data():
        x = np.random.default_rng(0).normal(size=(12800, 64)).astype("float32")
        return Data(train=(x, (x.sum(axis=1) > 0).astype("int64")), name="toy")
"""


@pytest.mark.slow
def test_two_jobs_from_the_command_line_to_the_exit_code(tmp_path, monkeypatch):
    """As a run of continuous integration does it: `tfopt bench --only`, then `tfopt gate`."""
    (tmp_path / "two_jobs.py").write_text(textwrap.dedent(TWO_JOBS))
    monkeypatch.chdir(tmp_path)
    command = "bench --only two_jobs:base two_jobs:slower --quick --rounds 3 --studies 0 --seeds 0"
    bench = [sys.executable, "-m", "tfopt.commands.cli", *command.split(), "--output", "out"]
    done = subprocess.run(bench, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    fails = gate("out/bench.json")
    assert fails.returncode == 1, fails.stdout + fails.stderr
    assert "two_jobs:slower: regression: +" in fails.stdout
    assert "3 rounds in pairs" in fails.stdout
    # It takes some twenty times as long, and never a thousand times.
    passes = gate("out/bench.json", limit="100000%")
    assert passes.returncode == 0, passes.stdout + passes.stderr
    assert passes.stdout.endswith("gate: pass\n")
