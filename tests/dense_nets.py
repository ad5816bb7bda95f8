"""A small dense net with its data and job, and what the tests of compression do with it."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from tfopt import Data, Job
from tfopt.compress.prune import pruning_report

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 12)).astype("float32")
Y = RNG.normal(size=(64, 4)).astype("float32")


ROWS = RNG.normal(size=(96, 12)).astype("float32")
CLASSES = (ROWS.sum(axis=1) > 0).astype("int64")


def compiled(*parts, **settings):
    """Return a Sequential model, compiled without XLA, which takes longer than these trainings."""
    model = keras.Sequential(list(parts))
    model.compile(**{"optimizer": "adam", "loss": "mse", "jit_compile": False, **settings})
    return model


def dense_model(activation="tanh", **settings):
    hidden = layers.Dense(16, activation, name="hidden")
    return compiled(keras.Input((12,)), hidden, layers.Dense(4, name="out"), **settings)


def fit(model, epochs=1, data=(X, Y), **arguments):
    """Train eight steps an epoch."""
    return model.fit(*data, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **arguments)


def loaded(model, folder):
    """Return a model as its file has it."""
    model.save(folder / "m.keras")
    return keras.models.load_model(folder / "m.keras")


def set_zeros(model, share):
    """Put the smallest weights of each kernel at zero, and return where each kernel has zeros."""
    for layer in kernel_layers(model):
        kernel = layer.kernel.numpy()
        small = np.abs(kernel) < np.quantile(np.abs(kernel), share)
        layer.kernel.assign(np.where(small, 0, kernel))
    return zeros_of(model)


def kernel_layers(model):
    return [layer for layer in model.layers if hasattr(layer, "kernel")]


def zeros_of(model):
    return [layer.kernel.numpy() == 0 for layer in kernel_layers(model)]


def assert_same(one, other, rtol=0, atol=0):
    """Compare arrays one by one; of models their weights."""
    arrays = [each if isinstance(each, list) else each.get_weights() for each in (one, other)]
    for left, right in zip(*arrays, strict=True):
        np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)


def assert_pruned(model, sparsity=0.8):
    masked = [row for row in pruning_report(model) if row.target is not None]
    assert masked
    for row in masked:
        assert row.target == sparsity
        assert abs(row.zeros - sparsity * row.weights) <= 1, row


def a_job(data=None, **settings):
    """A job of 24 steps, which tells two classes apart."""

    def build():
        norm, out = layers.BatchNormalization(name="norm"), layers.Dense(2, "softmax", name="out")
        hidden = layers.Dense(16, "relu", name="hidden")
        return keras.Sequential([keras.Input((12,)), hidden, norm, out])

    return Job(
        build=build,
        data=lambda: data or Data(train=(ROWS, CLASSES), test=(ROWS, CLASSES)),
        compile=lambda: {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "jit_compile": False,
        },
        **{"batch_size": 8, "epochs": 2, **settings},
    )


class FirstWeightsAgain(keras.callbacks.Callback):
    """Ends the training with the weights it began with."""

    def on_train_begin(self, logs=None):
        self.first = self.model.get_weights()

    def on_train_end(self, logs=None):
        self.model.set_weights(self.first)


class StopAtOnce(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True
