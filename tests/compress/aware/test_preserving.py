"""What quantization-aware training leaves as it is: zeros, few values, results of a user's own."""

import keras
import numpy as np
import pytest
from dense_nets import compiled, loaded
from int8_kernels import int8_kernels
from keras import layers
from one_file import OneFile

import tfopt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(128, 8, 8, 3)).astype("float32")
Y = RNG.integers(0, 4, 128)
CONV, HIDDEN, OUT = 27 * 8, 288 * 24, 24 * 4


def net(optimizer="adam"):
    return compiled(
        keras.Input((8, 8, 3)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(24, "relu"),
        layers.Dense(4, "softmax"),
        optimizer=optimizer,
        loss="sparse_categorical_crossentropy",
    )


def kernels(model):
    return [layer.kernel.numpy() for layer in model.layers if hasattr(layer, "kernel")]


def test_what_was_held_is_held_into_the_file():
    model = net()
    model.fit(X, Y, verbose=0)
    tfopt.cluster(tfopt.strip(tfopt.prune(model, 0.75)), 6)
    tfopt.quantize_aware(model)
    model.fit(X, Y, epochs=3, verbose=0)
    tfopt.strip(model)
    made = tfopt.quantize(model, calibration=X)
    assert made.fully_integer
    # Labels drawn by chance leave near ties, in which an argmax tells little.
    assert made.parity.relative_error < 0.01
    for kernel in kernels(model):
        assert len(np.unique(kernel)) <= 6
        assert np.mean(kernel == 0) >= 0.74
    # In the file each channel has a scale of its own.
    for values in int8_kernels(made.content, (CONV, HIDDEN, OUT)).values():
        assert np.mean(values == 0) >= 0.74


def test_masks_and_the_values_of_int4_are_in_the_file():
    hidden = layers.Dense(64, "relu", name="in")
    model = compiled(keras.Input((16,)), hidden, layers.Dense(3, name="out"))
    tfopt.quantize_aware(tfopt.prune(model, 0.75, layers="^in"), "int4")
    data = RNG.normal(size=(64, 16)).astype("float32")
    model.fit(data, RNG.normal(size=(64, 3)), verbose=0)
    made = tfopt.quantize(tfopt.strip(model), calibration=data)
    stored = int8_kernels(made.content, (1024,))[1024].reshape(64, 16)
    assert np.mean(stored == 0) >= 0.75
    assert max(len(np.unique(row)) for row in stored) <= 15


def test_zeros_that_nothing_holds_are_told_and_those_held_are_not():
    model = net()
    tfopt.strip(tfopt.prune(model, 0.75))
    with pytest.warns(UserWarning, match=r"3 kernels of .* have many zeros .*75%.*before strip"):
        tfopt.quantize_aware(model)
    tfopt.quantize_aware(tfopt.cluster(tfopt.strip(model), 6))
    # One of zeros alone was initialised so.
    model = net()
    model.layers[0].kernel.assign(np.zeros((3, 3, 3, 8)))
    tfopt.quantize_aware(model)


@pytest.mark.parametrize("held", ["masks", "clusters"])
def test_a_file_saved_after_an_average_holds_what_was_held(tmp_path, held):
    model = net(keras.optimizers.Adam(use_ema=True, ema_momentum=0.9))
    if held == "masks":
        tfopt.prune(model, tfopt.compress.PolynomialSparsity(0.75, end_step=3))
    else:
        tfopt.cluster(model, 6)
    model.fit(X, Y, epochs=2, verbose=0)
    for kernel in kernels(tfopt.strip(loaded(model, tmp_path))):
        assert np.mean(kernel == 0) >= 0.74 if held == "masks" else len(np.unique(kernel)) <= 6


class FeedForward(layers.Layer):
    """Has an activation in the middle, where an attribute of Keras's layers says it of the end."""

    def __init__(self):
        super().__init__()
        self.activation = keras.activations.relu
        self.up, self.down = layers.Dense(32), layers.Dense(16)

    def call(self, x):
        return self.down(self.activation(self.up(x)))


def test_nothing_is_cut_off_the_result_of_a_call_of_ones_own():
    rows = RNG.normal(size=(128, 16)).astype("float32")
    file = OneFile({"own": lambda x: FeedForward()(layers.Dense(16)(x))}, rows)
    after, plain = file.trained_aware(batches=1)["own"], file.wanted["own"]
    step = np.ptp(plain) / 255
    assert abs(after.min() - plain.min()) < 6 * step
    assert abs(after.max() - plain.max()) < 6 * step
