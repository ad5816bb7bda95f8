"""Latency on the device that TensorFlow serves on; a CPU device stands in for the GPU here."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt.job.parts import Artefact
from tfopt.measure import serving as gpu_serving
from tfopt.measure.model_footprint import footprint
from tfopt.measure.serving import (
    Gpu,
    GpuRuns,
    ServingFile,
    first_gpu,
    leave_program,
    program_in,
    run_of_model,
)
from tfopt.measure.tasks import ServingInTurns, leave_serving_file

STAND_IN = Gpu("/CPU:0", "a stand-in")


def net(width=16, **settings):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(width, **settings), layers.Dense(3, **settings)]
    )


@pytest.fixture
def stand_in(monkeypatch):
    for place in ("tfopt.measure.serving", "tfopt.measure.model_footprint"):
        monkeypatch.setattr(f"{place}.first_gpu", lambda: STAND_IN)


def two_inputs():
    ids, x = keras.Input((5,), dtype="int32", name="ids"), keras.Input((6,), name="x")
    h = layers.Concatenate()([layers.GlobalAveragePooling1D()(layers.Embedding(9, 4)(ids)), x])
    # Keras hands a dict's values in the order of its keys.
    return keras.Model({"x": x, "ids": ids}, {"a": layers.Dense(2)(h), "b": layers.Dense(1)(h)})


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (net, ["x"]),
        (lambda: net(dtype="mixed_bfloat16"), ["x"]),
        (two_inputs, ["ids", "x"]),
    ],
)
def test_what_is_timed_are_the_models_own_answers(tmp_path, make, names):
    model = make()
    run = run_of_model(model, STAND_IN, 7)
    inputs = [np.asarray(each) for each in run.rows]
    assert [len(each) for each in inputs] == [7] * len(names)
    given = dict(zip(names, inputs, strict=True)) if len(names) > 1 else inputs[0]
    expected = keras.tree.flatten(model(given, training=False))
    for got, wanted in zip(run(), expected, strict=True):
        np.testing.assert_array_equal(got, np.asarray(wanted))

    leave_program(model, tmp_path)
    del model
    loaded = program_in(tmp_path)(STAND_IN, 7)
    for got, wanted in zip(loaded(), expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(got, "float32"), np.asarray(wanted, "float32"), rtol=1e-6
        )


def test_models_are_compared_on_it_beside_litert(stand_in):
    int8 = tfopt.quantize(net(), representative=np.ones((8, 6), "float32"))
    found = footprint({"plain": net(), "wide": net(60_000), "int8": int8}, turns=5, gpu_batch=64)
    plain, wide, integers = found.rows
    assert plain.gpu_ms > 0
    assert plain.gpu_latency is None
    assert wide.gpu_latency.low > 1.5
    assert wide.gpu_ms > plain.gpu_ms
    assert (integers.gpu_ms, integers.gpu_latency) == (None, None)
    assert "LiteRT runs its file on the CPU only" in integers.notes
    assert "a stand-in, 64 examples at once" in found.gpu
    lines = str(found).splitlines()
    assert lines[0].count("of the first's") == 2
    assert lines[2].endswith(", slower")
    assert lines[3].split()[-1] == "-"


def test_what_does_not_run_there_has_its_reason():
    runs = GpuRuns(STAND_IN)
    open_sizes = keras.Sequential([keras.Input((None, None, 3)), layers.Conv2D(2, 1)])
    kept = runs.with_program(
        ServingFile("it", b"x"), lambda gpu, batch: run_of_model(open_sizes, gpu, batch)
    )
    assert kept.notes == ("no latency on the GPU: its inputs leave a size open",)

    def too_large(gpu, batch):
        def run():
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating\nmore")

        return run

    told = runs.with_program(ServingFile("it", b"x", notes=("its own",)), too_large)
    assert told.notes == ("its own", "no latency on the GPU: OOM when allocating")
    assert runs.runs == {}


def test_a_fixed_batch_stays():
    x = keras.Input((4,), batch_size=8)
    run = run_of_model(keras.Model(x, layers.Dense(2)(x)), STAND_IN, 32)
    assert run()[0].shape == (8, 2)


def test_rows_of_a_walk_leave_their_programs(tmp_path, stand_in):
    made = Artefact("m.tflite", tfopt.quantize(net(), mode="dynamic").content)
    for name, artefacts in {"plain": (), "int8": (made,)}.items():
        leave_serving_file(SimpleNamespace(model=net(), artefacts=artefacts), tmp_path / name)
    assert program_in(tmp_path / "int8") is None
    task = ServingInTurns({name: str(tmp_path / name) for name in ("plain", "int8")})
    found = task.read(json.loads(json.dumps(task.carry_out(None, None, None).value)))
    assert [row.gpu_ms is not None for row in found.rows] == [True, False]
    assert "32 examples" in found.gpu


def test_without_a_gpu_nothing_is_said_of_one(tmp_path):
    if first_gpu() is not None:
        pytest.skip("there is a GPU")
    found = footprint({"it": net()}, turns=5)
    assert found.gpu is None
    assert "GPU" not in str(found)
    leave_serving_file(SimpleNamespace(model=net(), artefacts=()), tmp_path / "f")
    assert gpu_serving.program_in(tmp_path / "f") is None
