"""What the rows of a walk would serve: files left by their processes, compared in one more."""

import json
import os
import textwrap
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt import Prune, Quantize, UserError, chain
from tfopt.job.parts import Artefact
from tfopt.measure.process import run_worker
from tfopt.measure.serving import ServingFile, trained_file
from tfopt.measure.tasks import ServingInTurns, Training, leave_serving_file
from tfopt.measure.walk import Plan, walk
from tfopt.report.view import serving_view

X = np.random.default_rng(0).random((40, 6), dtype="float32")
JOB = """
    import os

    import keras
    import numpy as np
    from tfopt import Data, Job

    def job(dies=False) -> Job:
        return Job(build=lambda: build(dies), data=data, compile=compile_)

    def build(dies):
        class Dense(keras.layers.Dense):
            def call(self, x, training=None):
                # Keras asks for no training where a model is made into a file.
                if dies and self.path_of_export():
                    os._exit(7)
                return super().call(x)

            def path_of_export(self):
                import traceback
                return any(frame.filename.endswith("measure/serving.py") for frame in traceback.extract_stack())

        kind = Dense if dies else keras.layers.Dense
        return keras.Sequential([keras.Input((6,)), kind(64, "relu"), keras.layers.Dense(2, "softmax")])

    def compile_():
        return {"optimizer": "adam", "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}

    def data():
        x = np.random.default_rng(0).normal(size=(512, 6)).astype("float32")
        y = (x.sum(axis=1) > 0).astype("int64")
        return Data(train=(x, y), test=(x, y), name="toy")
"""


def net():
    return keras.Sequential([keras.Input((6,)), layers.Dense(64), layers.Dense(3)])


@pytest.fixture
def job_here(tmp_path, monkeypatch):
    (tmp_path / "toy_serving.py").write_text(textwrap.dedent(JOB))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return "toy_serving:job"


@pytest.mark.slow
def test_a_walk_of_smaller_models_ends_with_what_they_serve(job_here, tmp_path):
    (tmp_path / "out").mkdir()
    names = []
    watcher = SimpleNamespace(
        started=lambda name, number, total: names.append((name, number, total)),
        progress=lambda *_: None,
        finished=lambda row: None,
    )
    plan = Plan("toy", "", job_here, chain(Prune(0.8), Quantize()), tmp_path / "out")
    report = walk(plan, watcher, lambda _: None)
    rows = {row.name: row for row in report.serving.rows}
    assert list(rows)[:3] == ["baseline", "+ Prune", "+ Quantize"]
    assert report.serving.missing == ()
    weights = 6 * 64 + 64 + 64 * 2 + 2
    assert {row.parameters for row in rows.values()} == {weights}
    assert rows["+ Prune"].zeros >= 0.79 * (6 * 64)
    assert rows["+ Prune"].latency.rounds == 40
    made = {row.name: row.figures for row in report.rows}["+ Quantize"]
    assert rows["+ Quantize"].kib == pytest.approx(made.artefact_kib, abs=0.05)
    assert rows["+ Quantize"].gflop_per_example == rows["baseline"].gflop_per_example
    assert names[-1][0] == "size and speed when it serves"
    assert names[-1][1] <= names[-1][2]


def test_a_process_that_dies_over_its_file_has_been_measured(job_here, tmp_path):
    done = run_worker(Training(None, str(tmp_path / "f")), job=job_here, arguments={"dies": True})
    assert done.status == "measured", done.reason
    assert done.value.test_accuracy is not None
    compared = run_worker(
        ServingInTurns({"baseline": str(tmp_path / "f")}), job=job_here, arguments={}
    )
    assert compared.value is None
    assert "baseline: the process ended while its file was made" in compared.reason


@pytest.mark.slow
def test_what_was_left_is_read_back(tmp_path):
    model = net()
    tfopt.strip(tfopt.prune(model, 0.9))
    made = trained_file("pruned", model, ())
    made.write(tmp_path / "f")
    assert ServingFile.read("pruned", tmp_path / "f") == made
    assert made.sparse_kib is not None
    assert made.zeros > 500


def test_the_last_litert_file_is_what_serves():
    model = net()
    first, last = (tfopt.quantize(model, mode=mode).content for mode in ("float16", "dynamic"))
    made = [Artefact("a.tflite", first), Artefact("b.tflite", last), Artefact("c.keras", b"x")]
    found = trained_file("m", model, made)
    assert found.content == last
    assert found.parameters == model.count_params()
    assert found.gflop > 0


class Python(layers.Layer):
    """Runs in this process, which no file can hold."""

    def call(self, x):
        return tf.ensure_shape(tf.py_function(lambda y: 2 * y, [x], tf.float32), (None, 6))


def told_in_turns(folders):
    task = ServingInTurns({name: str(folder) for name, folder in folders.items()})
    return task.read(json.loads(json.dumps(task.carry_out(None, None, None).value)))


@pytest.mark.parametrize(
    ("part", "content"),
    [("facts.json", b'{"notes": ['), ("facts.json", b"{}"), ("model.tflite", b"junk" * 100)],
)
def test_a_damaged_file_is_told_and_the_others_are_compared(tmp_path, part, content):
    file = trained_file("", net(), ())
    for name in ("plain", "damaged", "small"):
        file.write(tmp_path / name)
    (tmp_path / "damaged" / part).write_bytes(content)
    found = told_in_turns({name: tmp_path / name for name in ("plain", "damaged", "small")})
    assert [row.name for row in found.rows] == ["plain", "small"]
    assert found.rows[1].latency is not None
    (told,) = found.missing
    assert told.startswith("damaged: its file cannot be used: ")


def test_without_the_first_rows_file_nothing_is_told_as_a_ratio(tmp_path):
    file = trained_file("", net(), ())
    for name in ("+ Prune", "+ Quantize"):
        file.write(tmp_path / name)
    found = told_in_turns({n: tmp_path / n for n in ("baseline", "+ Prune", "+ Quantize")})
    assert not found.compared
    assert [row.latency for row in found.rows] == [None, None]
    assert all(row.latency_ms > 0 for row in found.rows)
    assert "nothing is told against baseline, which has no file" in found.missing
    assert [line.split()[-1] for line in str(found).splitlines()[1:3]] == ["-", "-"]
    for row in serving_view(found).rows:
        assert [cell.detail for cell in row.cells[2:]] == [""] * 4


def test_what_is_interrupted_while_it_is_left_is_no_file(tmp_path, fresh_python):
    """A limit on the size of files stands for a full disk."""
    file = trained_file("", net(), ())
    fresh_python(f"""
        import resource, signal
        from pathlib import Path
        from tfopt.measure.serving import ServingFile
        from tfopt.errors import UserError

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
        try:
            ServingFile("", bytes({len(file.content)})).write(Path({str(tmp_path / "cut")!r}))
        except UserError as error:
            assert "could not be written" in str(error)
    """)
    file.write(tmp_path / "whole")
    found = told_in_turns({name: tmp_path / name for name in ("whole", "cut")})
    assert found.missing == ("cut: the process ended while its file was made",)
    assert os.listdir(tmp_path / "cut") == []


def test_a_model_without_a_file_is_told_and_the_others_are_compared(tmp_path):
    whole = net()
    odd = keras.Sequential([keras.Input((6,)), Python(), layers.Dense(3)])
    for name, model in {"plain": whole, "odd": odd}.items():
        leave_serving_file(SimpleNamespace(model=model, artefacts=()), tmp_path / name)
    folders = {name: str(tmp_path / name) for name in ("plain", "odd", "never")}
    task = ServingInTurns(folders)
    found = task.read(json.loads(json.dumps(task.carry_out(None, None, None).value)))
    assert [row.name for row in found.rows] == ["plain"]
    assert [text.split(":")[0] for text in found.missing] == ["odd", "never"]
    assert "never: the process ended while its file was made" in found.missing
    with pytest.raises(UserError, match="No row has a file"):
        ServingInTurns({"odd": folders["odd"]}).carry_out(None, None, None)


def test_a_row_that_has_no_place_for_its_file_loses_nothing_else(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "row"
    leave_serving_file(SimpleNamespace(model=net(), artefacts=()), folder)
    assert "Not a directory" in capsys.readouterr().err
    assert not folder.exists()
