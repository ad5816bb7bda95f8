"""Categories that travel as floats are the same ones in a file of integers."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfopt
from tfopt.export import litert as conversion

RNG = np.random.default_rng(0)
CATEGORIES = RNG.integers(0, 50, (256, 1))
TABLE = np.concatenate([RNG.normal(size=(256, 3)), CATEGORIES], axis=1).astype("float32")


def encoded():
    inputs = keras.Input((1,), dtype="int32")
    hidden = layers.CategoryEncoding(50, output_mode="one_hot")(inputs)
    return keras.Model(inputs, layers.Dense(1)(hidden)), CATEGORIES.astype("int32")


def a_column(look_up):
    inputs = keras.Input((4,))
    found = layers.Flatten()(look_up(ops.cast(inputs[:, 3:], "int32")))
    both = layers.concatenate([inputs[:, :3], found])
    return keras.Model(inputs, layers.Dense(1)(both)), TABLE


def looked_up():
    return a_column(layers.Embedding(50, 8, embeddings_initializer="normal"))


def one_hot():
    return a_column(lambda index: ops.one_hot(index, 50))


@pytest.mark.parametrize("build", [encoded, looked_up, one_hot])
def test_categories_are_the_same_ones(build, monkeypatch):
    model, x = build()

    def error():
        return tfopt.quantize(model, representative=x, tolerance=None).parity.relative_error

    assert error() < 0.03
    monkeypatch.setattr(conversion, "keep_indices_whole", lambda graph: None)
    assert error() > 0.06


@pytest.mark.parametrize("mode", ["int8", "dynamic", "float16"])
def test_a_dense_layer_on_integers_is_served_as_keras_computes_it(mode):
    model = keras.Sequential([keras.Input((6,), dtype="int32"), layers.Dense(8), layers.Dense(1)])
    x = RNG.integers(0, 9, (64, 6)).astype("int32")
    assert tfopt.quantize(model, mode=mode, representative=x).parity.relative_error < 0.03
