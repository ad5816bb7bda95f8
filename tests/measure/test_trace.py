"""Traces of real steps of a small job, in processes of their own."""

import textwrap

import tfopt
from tfopt.measure.display import Display
from tfopt.measure.targets import Target
from tfopt.measure.trace import trace

JOBS = """
    import keras
    import numpy as np
    from tfopt import Data, Job

    def job(width: int = 8) -> Job:
        return Job(build=lambda: build(width), data=data, compile=compile_, batch_size=64)

    def build(width):
        layers = [keras.layers.Dense(width), keras.layers.Dense(2, "softmax")]
        return keras.Sequential([keras.Input((6,)), *layers])

    def compile_():
        return {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}

    def data():
        x = np.random.default_rng(0).normal(size=(256, 6)).astype("float32")
        return Data(train=(x, (x.sum(axis=1) > 0).astype("int64")), name="toy")
"""


def test_each_target_leaves_a_trace_of_its_steps(tmp_path, monkeypatch):
    (tmp_path / "traced_jobs.py").write_text(textwrap.dedent(JOBS))
    monkeypatch.chdir(tmp_path)
    name = "traced_jobs:job"
    targets = {
        "reference": Target(name, name),
        "kept": Target(name, name, tfopt.chain(tfopt.Execution(steps_per_execution=2))),
        "broken": Target(name, name, arguments={"width": -1}),
    }
    (failed,) = trace(targets, tmp_path / "traces", Display(verbose=False))
    assert failed.startswith("The steps of broken could not be traced: ")
    for name in ("reference", "kept"):
        (file,) = (tmp_path / "traces" / name).glob("plugins/profile/*/*.xplane.pb")
        assert b"MatMul" in file.read_bytes()
