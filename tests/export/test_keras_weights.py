"""Keras's own weight quantization: right copies pass, wrong ones are refused by name."""

import os
import tempfile

import keras
import numpy as np
import pytest
from keras import layers

from tfopt import UserError
from tfopt.compress.prune import prune
from tfopt.compress.weight_mask import WeightMask
from tfopt.export.quantize import quantize

RNG = np.random.default_rng(0)
SEQUENCES = RNG.random((48, 12, 6)).astype("float32")
FLAT = RNG.random((48, 300)).astype("float32")


def wide():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((300,)), layers.Dense(128, "relu"), layers.Dense(10, "softmax")]
    )


@pytest.mark.parametrize(("mode", "share"), [("keras_int8", 4), ("keras_int4", 8)])
def test_a_copy_comes_back_smaller_and_close(mode, share, tmp_path):
    model = wide()
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(FLAT, np.arange(48) % 10, verbose=0)
    weights = model.get_weights()
    path = tmp_path / "small.keras"
    made = quantize(model, path, mode=mode, representative=FLAT, tolerance=0.2)

    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(
        loaded.predict(FLAT, verbose=0), made.model.predict(FLAT, verbose=0)
    )
    assert {layer.quantization_mode for layer in loaded.layers} == {mode[6:]}
    assert not loaded.compiled, "the optimizer's state would outweigh the saving"
    assert len(path.read_bytes()) == len(made.content) < 1024 * (made.float_kib / share + 25)
    assert 0 < made.parity.relative_error < 0.2
    assert made.left_float == ()
    assert os.listdir(tmp_path) == ["small.keras"]
    assert [layer.quantization_mode for layer in model.layers] == [None, None]
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_model_with_masks_on_gives_a_file_without_them(tmp_path, fresh_python):
    model = wide()
    prune(model, 0.5)
    quantize(model, tmp_path / "m.keras", mode="keras_int8", representative=FLAT)
    assert isinstance(model.layers[0].kernel.constraint, WeightMask)
    # Elsewhere nothing of tfopt is imported, so no class of ours would be found.
    fresh_python(f"import keras; keras.models.load_model({str(tmp_path / 'm.keras')!r})")


def test_what_keras_does_not_quantize_is_listed():
    x = keras.Input((12, 6))
    h = layers.Flatten()(layers.Conv1D(4, 3, name="conv")(x))
    made = quantize(
        keras.Model(x, layers.Dense(3, name="head")(h)),
        mode="keras_int8",
        representative=SEQUENCES,
    )
    assert [(row.name, row.kind) for row in made.left_float] == [("conv", "Conv1D")]
    assert made.notes == ("quantized: head",)


def time_distributed():
    x = keras.Input((12, 6))
    h = layers.TimeDistributed(layers.Dense(8, "relu", name="inner"))(x)
    return keras.Model(x, layers.Dense(4, "softmax")(layers.Flatten()(h)))


def attention():
    x = keras.Input((12, 6))
    h = layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(x, layers.Dense(3)(h))


def convolution():
    x = keras.Input((12, 6))
    return keras.Model(x, layers.GlobalAveragePooling1D()(layers.Conv1D(3, 3)(x)))


def test_keras_itself_is_silently_wrong_inside_time_distributed():
    model = time_distributed()
    expected = model.predict(SEQUENCES, verbose=0)
    model.quantize("int8", filters=lambda layer: bool(layer.weights))
    got = model.predict(SEQUENCES, verbose=0)
    assert np.linalg.norm(got - expected) > 0.5 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (time_distributed, "too far from its float self[\\s\\S]*inside TimeDistributed"),
        (attention, "cannot be loaded back"),
        (convolution, "no layer that Keras can quantize[\\s\\S]*conv1d"),
    ],
)
def test_a_wrong_copy_is_refused_and_leaves_nothing(make, message, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError, match=message):
        quantize(make(), tmp_path / "m.keras", mode="keras_int8", representative=SEQUENCES)
    assert os.listdir(tmp_path) == []


def test_it_needs_examples_and_a_keras_path(tmp_path):
    with pytest.raises(UserError, match="to compare with the float model"):
        quantize(wide(), mode="keras_int8")
    with pytest.raises(UserError, match=r"ends in \.keras"):
        quantize(wide(), tmp_path / "m.tflite", mode="keras_int4", representative=FLAT)
