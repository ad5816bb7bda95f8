"""Inputs of which a part is looked up are not rounded while a quantization-aware model trains."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfopt
from tfopt.compress.integers import plan

RNG = np.random.default_rng(0)
TABLE = np.concatenate([RNG.uniform(-1, 1, (256, 3)), RNG.integers(0, 50, (256, 1))], axis=1)
TABLE = TABLE.astype("float32")


def table(look_up):
    inputs = keras.Input((4,))
    found = layers.Flatten()(look_up(inputs[:, 3:]))
    return keras.Model(inputs, layers.Dense(1)(layers.concatenate([inputs[:, :3], found])))


def looked_up():
    return table(
        layers.Embedding(50, 8, embeddings_initializer=keras.initializers.RandomUniform(-1, 1))
    )


def one_hot():
    return table(lambda column: ops.one_hot(ops.cast(column, "int32"), 50))


def in_a_nested_model():
    values, column = keras.Input((3,)), keras.Input((1,))
    found = layers.Embedding(50, 8, embeddings_initializer=keras.initializers.RandomUniform(-1, 1))
    joined = layers.concatenate([values, layers.Flatten()(found(column))])
    inner = keras.Model([values, column], joined)
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(1)(inner([inputs[:, :3], inputs[:, 3:]])))


def in_a_nested_sequential():
    encoder = keras.Sequential(
        [
            keras.Input((1,)),
            layers.Embedding(50, 8, embeddings_initializer=keras.initializers.RandomUniform(-1, 1)),
            layers.Flatten(),
        ]
    )
    return table(lambda column: encoder(column))


@pytest.mark.parametrize("build", [looked_up, one_hot, in_a_nested_model, in_a_nested_sequential])
def test_the_model_trains_on_the_categories_that_it_was_given(build, monkeypatch):
    def aware_error():
        keras.utils.set_random_seed(0)
        model = build()
        expected = model.predict(TABLE, verbose=0)
        tfopt.quantize_aware(model)
        model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
        model.fit(TABLE, expected, epochs=10, verbose=0)
        error = model.predict(TABLE, verbose=0) - expected
        made = tfopt.quantize(model, representative=TABLE, tolerance=None)
        remark = tfopt.compress.quantization_report(model)[0].remark or ""
        return np.linalg.norm(error) / np.linalg.norm(expected), made.parity.relative_error, remark

    aware, file, remark = aware_error()
    assert aware < 0.15
    assert file < 0.03
    assert "categories" in remark
    monkeypatch.setattr(plan, "inputs_of_categories", lambda model: frozenset())
    assert aware_error()[0] > 0.5
