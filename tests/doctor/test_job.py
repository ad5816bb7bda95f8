"""One job in a real process with real steps."""

import sys
import textwrap

import pytest

from tfopt.doctor.check import Check, Subject
from tfopt.doctor.job_checks import examine_job, job

JOBS = """
    import keras
    import numpy as np
    from pathlib import Path
    from tfopt import Data, Job

    def data():
        x = np.random.default_rng(0).normal(size=(640, 20)).astype("float32")
        return Data(train=(x, (x.sum(axis=1) > 0).astype("int64")), name="toy")

    def build():
        return keras.Sequential([keras.Input((20,)), keras.layers.Dense(33, name="wide"),
                                 keras.layers.Dense(16), keras.layers.Dense(2, "softmax")])

    def compile_():
        return {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}

    class Writes(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            Path("written.txt").touch()

    def plain(batch: int = 64) -> Job:
        return Job(build=build, data=data, compile=compile_, batch_size=batch, callbacks=(Writes,))

    def unscaled() -> Job:
        def half():
            keras.config.set_dtype_policy("mixed_float16")
            return build()
        settings = lambda: {**compile_(), "auto_scale_loss": False}
        return Job(build=half, data=data, compile=settings, batch_size=64)

    def broken() -> Job:
        def no_model():
            return keras.Sequential([keras.Input((19,)), keras.layers.Dense(2, "softmax")])
        return Job(build=no_model, data=data, compile=compile_, batch_size=64)
"""
BOTH = [{"transform": "prune", "sparsity": 0.5}, {"transform": "cluster"}]


@pytest.fixture
def subject(tmp_path, monkeypatch):
    (tmp_path / "doctors_jobs.py").write_text(textwrap.dedent(JOBS))
    monkeypatch.chdir(tmp_path)
    return lambda name, **settings: Subject(job=f"doctors_jobs:{name}", **settings)


@pytest.fixture
def probed(subject, tmp_path, monkeypatch):
    """Examine a job as its own process does, in this one."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "doctors_jobs", raising=False)

    def probe(name, chain=()):
        asked = {"job": f"doctors_jobs:{name}", "arguments": {}, "chain": chain}
        asked |= {"memory_mib": 8000.0, "memory_of": "the host"}
        return by_name(each for each in examine_job(asked) if isinstance(each, Check))

    return probe


def by_name(checks):
    return {each.name: each for each in checks}


def test_a_job_that_is_in_order(subject, tmp_path):
    checks = by_name(job(subject("plain")))
    assert {check.verdict for check in checks.values()} <= {"ok", "warning"}
    assert list(checks) == ["transforms", "job", "precision", "memory", "rehearsal"]
    assert "1,271 parameters, toy" in checks["job"].message
    assert "64 examples a step" in checks["job"].message
    assert "3 steps trained" in checks["rehearsal"].message
    assert any(line.startswith("peak") for line in checks["memory"].evidence)
    assert not (tmp_path / "written.txt").exists(), "the job's callbacks have no part in it"


def test_transforms_that_do_not_combine_are_named(probed):
    checks = probed("plain", chain=BOTH)
    assert checks["transforms"].verdict == "failure"
    assert checks["transforms"].message.startswith("Prune and Cluster both constrain the weights")
    assert checks["transforms"].fix


def test_float16_without_loss_scaling(probed):
    checks = probed("unscaled")
    assert checks["precision"].verdict == "failure"
    assert "mixed_float16" in checks["precision"].fix


def test_a_model_that_does_not_take_its_data(probed):
    checks = probed("broken")
    assert checks["job"].verdict == "ok"
    assert checks["memory"].verdict == "not here"
    assert checks["rehearsal"].verdict == "failure"
    assert "axis -1 of input shape to have value 19" in checks["rehearsal"].message
