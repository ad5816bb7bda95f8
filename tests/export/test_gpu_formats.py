"""Formats for GPUs, as far as a machine without one shows them: nothing here has run on a GPU."""

from types import SimpleNamespace

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt import UserError
from tfopt.export.export import file_outputs
from tfopt.export.formats.onnx_cuda import OnnxCuda
from tfopt.export.formats.roster import FORMATS

X = np.random.default_rng(0).random((20, 8), dtype="float32")
CUDA = "CUDAExecutionProvider"


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    hidden = layers.Dense(16, "relu"), layers.BatchNormalization()
    return keras.Sequential([keras.Input((8,)), *hidden, layers.Dense(3, "softmax")])


@pytest.fixture
def for_gpus(monkeypatch):
    """Let onnxruntime be the package for GPUs, whose CUDA provider starts where ``starts`` says."""
    state = SimpleNamespace(starts=True, asked=[])

    class Session(onnxruntime.InferenceSession):
        def __init__(self, path, options, providers):
            state.asked += providers
            super().__init__(path, options, providers=["CPUExecutionProvider"])

        def get_providers(self):
            return [*[CUDA] * state.starts, *super().get_providers()]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA])
    return state


@pytest.fixture(scope="module")
def onnx_file(model, tmp_path_factory):
    exported = tfopt.export(model, tmp_path_factory.mktemp("onnx"), formats="onnx", examples=X)
    return exported["onnx"]


def test_xla_compiles_a_saved_model_wherever_it_is_loaded(model, tmp_path):
    exported = tfopt.export(model, tmp_path, formats="saved_model_xla", examples=X)
    file = exported["saved_model_xla"]
    assert file.parity.relative_error < 1e-5
    assert file.notes == ("XLA compiles it at the first call of each batch size",)
    loaded = tf.saved_model.load(str(file.path))
    library = loaded.signatures["serving_default"].graph.as_graph_def().library
    assert sum(each.attr["_XlaMustCompile"].b for each in library.function) == 1
    names = {"x": X[:2]}
    exec(file.code(), names)
    np.testing.assert_allclose(names["y"], model.predict(X[:2], verbose=0), atol=1e-6)


def test_what_xla_cannot_compile_is_refused_with_its_reason(tmp_path):
    lookup = layers.StringLookup(vocabulary=["a", "b"])
    words = keras.Input((3,), dtype="string")
    model = keras.Sequential([words, lookup, layers.Embedding(4, 2)])
    x = np.array([["a", "b", "c"]] * 4)
    with pytest.raises(UserError, match="No file of") as caught:
        tfopt.export(model, tmp_path / "out", formats="saved_model_xla", examples=x)
    assert "XLA cannot compile this model; received: " in caught.value.received
    assert "OpKernel for XLA_CPU_JIT" in caught.value.received
    assert not (tmp_path / "out").exists()


def test_onnx_runtime_is_asked_for_cuda(onnx_file, for_gpus, model):
    (given,) = file_outputs(FORMATS["onnx_cuda"], onnx_file.folder, onnx_file.signature, [X])
    assert for_gpus.asked == [CUDA]
    np.testing.assert_allclose(given, model.predict(X, verbose=0), atol=1e-5)
    assert f'providers=["{CUDA}"]' in OnnxCuda().code("file", onnx_file.signature)


def test_a_provider_that_falls_back_is_refused(onnx_file, for_gpus):
    for_gpus.starts = False
    with pytest.raises(UserError, match="fell back to the CPU") as caught:
        OnnxCuda().open(onnx_file.folder, onnx_file.signature, 1)
    assert caught.value.received == "CPUExecutionProvider"
    assert "tfopt[onnx-gpu]" in caught.value.fix


def test_onnx_runtime_for_cpus_is_refused(model, tmp_path):
    """The module is there, under the same name."""
    with pytest.raises(UserError, match="it has no CUDA provider") as caught:
        tfopt.export(model, tmp_path / "out", formats="onnx_cuda")
    assert "CPUExecutionProvider" in caught.value.received
    assert "pip install 'tfopt[onnx-gpu]'" in caught.value.fix
    assert not (tmp_path / "out").exists()


def test_without_a_gpu_nothing_is_measured_on_the_cpu_in_its_place(model, tmp_path):
    with pytest.raises(UserError, match="No file can be tried here") as caught:
        tfopt.optimize(model, X, folder=tmp_path / "out", target="gpu-latency")
    assert "saved_model_xla_float32: TensorFlow would compute on the CPU" in caught.value.received
    assert not (tmp_path / "out").exists()
