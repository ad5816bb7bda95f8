"""Layers that a class of the user's makes: what is held on them comes back from a file."""

import copy
import pickle

import keras
import numpy as np
import pytest
from dense_nets import assert_same, loaded
from keras import layers

import tfopt
from tfopt.compress.schedules import PolynomialSparsity

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6, 8)).astype("float32")
Y = RNG.normal(size=(64, 4)).astype("float32")


@keras.saving.register_keras_serializable("test_held_model")
class Block(layers.Layer):
    """As the tutorials write one down: its description holds no inner layer."""

    def __init__(self, width, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.attention = layers.MultiHeadAttention(2, width // 2)
        self.dense = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(width)])
        self.norm = layers.LayerNormalization()

    def build(self, shape):
        self.attention.build(shape, shape)
        self.dense.build(shape)
        self.norm.build(shape)

    def call(self, x):
        return self.norm(x + self.dense(x + self.attention(x, x)))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


@keras.saving.register_keras_serializable("test_held_model")
class Own(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block, self.pool = Block(8), layers.GlobalAveragePooling1D()
        self.out = layers.Dense(4, kernel_constraint=keras.constraints.MaxNorm(2.0))

    def call(self, x):
        return self.out(self.pool(self.block(x)))


def functional():
    x = keras.Input((6, 8))
    y = Block(8)(layers.Dense(8)(x))
    return keras.Model(x, layers.Dense(4)(layers.Flatten()(y)))


def built(make):
    keras.utils.set_random_seed(0)
    model = make()
    model(X[:1])
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    return model


def fit(model, epochs=1):
    model.fit(X, Y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return model


def weights(model):
    return [value.numpy() for value in model.variables if "seed" not in value.path]


def masked(model):
    return [row for row in tfopt.compress.pruning_report(model) if row.target is not None]


@pytest.mark.slow
@pytest.mark.parametrize("make", [Own, functional])
def test_masks_train_on_and_the_schedule_goes_on(make, tmp_path):
    """In mid-schedule: a loaded model trains what the one in memory does."""
    model = tfopt.prune(built(make), PolynomialSparsity(0.8, end_step=12, frequency=2))
    fit(model)
    again = loaded(model, tmp_path)
    assert len(masked(again)) == len(masked(model))
    assert 0.3 < max(row.sparsity for row in masked(again)) < 0.75
    for each in (model, again):
        fit(each, epochs=3)
        rows = masked(each)
        assert len(rows) >= 6
        assert all(abs(row.sparsity - 0.8) < 0.03 for row in rows)
    assert_same(weights(model), weights(again), atol=1e-6)


def test_masks_and_ranges_come_back_together_and_off(tmp_path):
    """Twice through a file; then a plain model."""
    plain = built(Own)
    base = plain.predict(X, verbose=0)
    model = fit(tfopt.prune(tfopt.quantize_aware(plain), 0.5))
    again = loaded(loaded(model, tmp_path), tmp_path)
    assert isinstance(again, Own)
    np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-5)
    for each in (model, again):
        fit(each)
        assert tfopt.compress.quantization_report(each)
        assert masked(each)
        assert all(row.zeros >= 0.5 * row.weights - 1 for row in masked(each))
        assert type(tfopt.strip(each)) is Own
    assert np.abs(plain.predict(X, verbose=0) - base).max() > 0


def test_copies_have_what_is_held_and_clones_have_not():
    model = fit(tfopt.prune(built(Own), 0.5))
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        fit(each)
        assert masked(each)
    assert masked(model)
