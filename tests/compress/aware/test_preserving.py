"""Zeros and few values stay what they are under quantization-aware training, into the file."""

import keras
import numpy as np
import pytest
from int8_kernels import int8_kernels
from keras import layers

import tfopt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(128, 8, 8, 3)).astype("float32")
Y = RNG.integers(0, 4, 128)
CONV, HIDDEN, OUT = 27 * 8, 288 * 24, 24 * 4


def net():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(24, "relu"),
            layers.Dense(4, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def test_what_was_held_is_held_into_the_file():
    model = net()
    model.fit(X, Y, verbose=0)
    tfopt.prune(model, 0.75)
    model.fit(X, Y, verbose=0)
    tfopt.strip(model)
    tfopt.cluster(model, 6)
    tfopt.quantize_aware(model)
    model.fit(X, Y, epochs=3, verbose=0)
    tfopt.strip(model)
    made = tfopt.quantize(model, calibration=X)
    assert made.fully_integer
    assert made.parity.argmax_agreement >= 0.95
    for layer in (layer for layer in model.layers if hasattr(layer, "kernel")):
        assert len(np.unique(layer.kernel)) <= 6
        assert np.mean(layer.kernel == 0) >= 0.74
    # In the file each channel has a scale of its own.
    for values in int8_kernels(made.content, (CONV, HIDDEN, OUT)).values():
        assert np.mean(values == 0) >= 0.74


def test_zeros_that_nothing_holds_are_told_and_those_held_are_not():
    model = net()
    tfopt.strip(tfopt.prune(model, 0.75))
    with pytest.warns(UserWarning, match=r"3 kernels of .* have many zeros .*75%.*before strip"):
        tfopt.quantize_aware(model)
    tfopt.strip(model)
    tfopt.cluster(model, 6)
    tfopt.quantize_aware(model)
    # One of zeros alone was initialised so.
    model = net()
    model.layers[0].kernel.assign(np.zeros((3, 3, 3, 8)))
    tfopt.quantize_aware(model)


@pytest.mark.parametrize("held", ["masks", "clusters"])
def test_a_file_saved_after_an_average_holds_what_was_held(tmp_path, held):
    model = net()
    model.compile(
        keras.optimizers.Adam(use_ema=True, ema_momentum=0.9),
        "sparse_categorical_crossentropy",
        jit_compile=False,
    )
    if held == "masks":
        tfopt.prune(model, tfopt.compress.PolynomialSparsity(0.75, end_step=3))
    else:
        tfopt.cluster(model, 6)
    model.fit(X, Y, epochs=2, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = tfopt.strip(keras.models.load_model(tmp_path / "m.keras"))
    for layer in (loaded.layers[0], *loaded.layers[2:]):
        kernel = layer.kernel.numpy()
        if held == "masks":
            assert np.mean(kernel == 0) >= 0.74
        else:
            assert len(np.unique(kernel)) <= 6
