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


@pytest.mark.parametrize("how", ["PQAT", "CQAT", "PCQAT"])
def test_what_was_held_is_held_into_the_file(how):
    model = net()
    model.fit(X, Y, verbose=0)
    if "P" in how:
        tfopt.prune(model, 0.75)
        model.fit(X, Y, verbose=0)
    if "C" in how:
        tfopt.strip(model)
        tfopt.cluster(model, 6)
    tfopt.quantize_aware(model)
    model.fit(X, Y, epochs=3, verbose=0)
    made = tfopt.quantize(model, representative=X)
    assert made.fully_integer
    assert made.parity.argmax_agreement >= 0.95
    kernels = int8_kernels(made.content, (CONV, HIDDEN, OUT))
    tfopt.strip(model)
    plain = [layer.kernel.numpy() for layer in model.layers if hasattr(layer, "kernel")]
    for values in [*kernels.values(), *plain]:
        if "C" in how:
            assert len(np.unique(values)) <= 6
        if "P" in how:
            assert np.mean(values == 0) >= 0.74


def test_clusters_of_each_channel_keep_a_scale_of_their_own():
    model = net()
    tfopt.cluster(model, 4, per_channel=True)
    tfopt.quantize_aware(model)
    model.fit(X, Y, epochs=2, verbose=0)
    made = tfopt.quantize(model, representative=X)
    values = int8_kernels(made.content, [CONV])[CONV]
    assert all(len(np.unique(channel)) <= 4 for channel in values)
    assert len(np.unique(values)) > 4
