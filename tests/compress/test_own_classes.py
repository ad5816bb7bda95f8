"""Models whose class makes its layers, or trains others: what is held on them comes back from a file."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_nets import assert_same, compiled, loaded
from dense_nets import fit as fit_rows
from keras import layers

import tfopt
from tfopt.compress.schedules import PolynomialSparsity
from tfopt.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6, 8)).astype("float32")
Y = RNG.normal(size=(64, 4)).astype("float32")


@keras.saving.register_keras_serializable("test_own_classes")
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


@keras.saving.register_keras_serializable("test_own_classes")
class Own(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block, self.pool = Block(8), layers.GlobalAveragePooling1D()
        self.out = layers.Dense(4, kernel_constraint=keras.constraints.MaxNorm(2.0))

    def call(self, x):
        return self.out(self.pool(self.block(x)))


def subclassed():
    model = Own()
    model(X[:1])
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    return model


def functional():
    parts = layers.Dense(8), Block(8), layers.Flatten(), layers.Dense(4)
    return compiled(keras.Input((6, 8)), *parts, optimizer=keras.optimizers.SGD(0.01))


def fit(model, epochs=1):
    fit_rows(model, epochs, data=(X, Y))
    return model


def masked(model):
    return [row for row in tfopt.compress.pruning_report(model) if row.target is not None]


@pytest.mark.slow
@pytest.mark.parametrize("make", [subclassed, functional])
def test_masks_train_on_and_the_schedule_goes_on(make, tmp_path):
    """In mid-schedule: a loaded model trains what the one in memory does."""
    model = fit(tfopt.prune(make(), PolynomialSparsity(0.8, end_step=24, frequency=4)))
    again = loaded(model, tmp_path)
    assert len(masked(again)) == len(masked(model))
    assert 0.3 < max(row.sparsity for row in masked(again)) < 0.75
    for each in (model, again):
        rows = masked(fit(each, epochs=3))
        assert len(rows) >= 6
        assert all(abs(row.sparsity - 0.8) < 0.03 for row in rows)
    weights = (
        [value.numpy() for value in each.variables if "seed" not in value.path]
        for each in (model, again)
    )
    assert_same(*weights, atol=1e-6)


def test_masks_and_ranges_come_back_together_and_off(tmp_path):
    """Twice through a file; then a plain model."""
    plain = subclassed()
    base = plain(X)
    model = fit(tfopt.prune(tfopt.quantize_aware(plain), 0.5))
    again = loaded(loaded(model, tmp_path), tmp_path)
    assert isinstance(again, Own)
    np.testing.assert_allclose(again(X), model(X), atol=1e-5)
    fit(again)
    assert tfopt.compress.quantization_report(again)
    assert masked(again)
    assert all(row.zeros >= 0.5 * row.weights - 1 for row in masked(again))
    for each in (model, again):
        assert type(tfopt.strip(each)) is Own
    assert np.abs(plain(X) - base).max() > 0


def test_copies_have_what_is_held_and_clones_have_not():
    model = fit(tfopt.prune(subclassed(), 0.5))
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert masked(fit(each))
    assert masked(model)


@keras.saving.register_keras_serializable("test_own_classes")
class Autoencoder(keras.Model):
    """Makes its models, trains them by a step of its own, and is never called: as a GAN or a VAE."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.encoder = keras.Sequential([keras.Input((8,)), layers.Dense(16, "relu")])
        self.decoder = keras.Sequential([keras.Input((16,)), layers.Dense(8)])

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self.decoder(self.encoder(x)) - x) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def uncalled(model):
    """Train a model that is never called."""
    model.compile(keras.optimizers.Adam(), jit_compile=False)
    model.fit(X[:, 0], verbose=0)
    assert not model.built
    return model


def zeros(model):
    return np.mean(model.encoder.layers[0].kernel.numpy() == 0)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
@pytest.mark.filterwarnings("ignore:You are saving a model that has not yet been built")
def test_what_is_held_on_a_model_without_call_stays_through_files_and_strip(tmp_path):
    model = uncalled(tfopt.prune(uncalled(Autoencoder()), 0.5))
    assert zeros(model) == 0.5
    again = uncalled(loaded(model, tmp_path))
    assert zeros(again) == 0.5
    plain = loaded(tfopt.strip(again), tmp_path)
    assert zeros(plain) == 0.5
    assert type(plain) is Autoencoder


@pytest.mark.parametrize(
    "refused", [tfopt.quantize_aware, lambda model: tfopt.quantize(model, calibration=X)]
)
def test_what_needs_a_call_says_to_give_the_models_inside(refused):
    with pytest.raises(UserError, match="if it only trains other models, pass those"):
        refused(uncalled(Autoencoder()))
