"""A slowdown of 5 % planted into a job, measured for real, and what a limit makes of it."""

import subprocess
import sys
import textwrap

import pytest

# A step ends every 20 ms, however long its computation took: on a busy machine too, the planted
# slowdown is all there is.
JOBS = """
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
            # What was late is caught up with, but for others' turns and the first step.
            due = now if self.due is None else self.due + self.period
            self.due = due if now - due < 0.08 else now
            time.sleep(max(0.0, self.due - now))

    def base() -> Job:
        return paced(0.0)

    def slower() -> Job:
        return paced(0.05)

    def paced(slower):
        return Job(build=build, data=data, compile=compile_, callbacks=(lambda: Pace(slower),))

    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, "softmax")])

    def compile_():
        return {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}

    def data():
        x = np.random.default_rng(0).normal(size=(25600, 6)).astype("float32")
        return Data(train=(x, (x.sum(axis=1) > 0).astype("int64")), name="toy")
"""


def tfopt(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tfopt", *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.mark.slow
def test_a_planted_slowdown_fails_the_run(tmp_path, monkeypatch):
    """As continuous integration does it: `tfopt bench --only`, then `tfopt compare`."""
    (tmp_path / "paced.py").write_text(textwrap.dedent(JOBS))
    monkeypatch.chdir(tmp_path)
    flags = "--budget 90s --seeds 0 --output out"
    done = tfopt("bench", "--only", "paced:base", "paced:slower", *flags.split())
    assert done.returncode == 0, done.stdout + done.stderr
    fails = tfopt("compare", "out", "--max-slowdown", "3%")
    assert fails.returncode == 1, fails.stdout + fails.stderr
    assert "paced:slower: regression" in fails.stdout
    assert fails.stdout.endswith("slower: regression\n")
    passes = tfopt("compare", "out", "--max-slowdown", "8%")
    assert passes.returncode == 0, passes.stdout + passes.stderr
    assert passes.stdout.endswith("slower: pass\n")
