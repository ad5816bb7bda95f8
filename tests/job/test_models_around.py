"""What is held on a model, or taken off it, counts in every model around it and beside it."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt.compress.model_graph import plain_class
from tfopt.job.compiled_steps import models_around

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(64, 8)).astype("float32"), RNG.normal(size=(64, 1)).astype("float32")


class Pair(keras.Model):
    """Trains two models by a step of its own, as a GAN does."""

    def __init__(self, inner, **settings):
        super().__init__(**settings)
        self.inner, self.head = inner, layers.Dense(1)

    def call(self, x, training=None):
        return self.head(self.inner(x, training=training))


@keras.saving.register_keras_serializable("tests")
class Owner(Pair):
    """Makes its parts itself, as most classes do."""

    def __init__(self, **settings):
        super().__init__(backbone(), **settings)


def backbone():
    return keras.Sequential([keras.Input((8,)), layers.Dense(32, name="body")], name="inner")


def around(inner):
    return keras.Sequential([keras.Input((8,)), inner, layers.Dense(1)])


def beside(inner):
    """Another model with the same layer, which does not hold the model itself."""
    return keras.Sequential([keras.Input((8,)), inner.layers[0], layers.Dense(1)])


def trained(outer):
    outer.compile("adam", "mse", jit_compile=False)
    outer.fit(X, Y, verbose=0)
    outer.predict(X, verbose=0)
    return outer


def zeros(inner):
    return float(np.mean(inner.layers[0].kernel.numpy() == 0))


@pytest.mark.parametrize("outer", [Pair, beside])
def test_masks_and_clusters_on_a_part_hold_in_a_model_that_has_trained_before(outer):
    inner = backbone()
    model = trained(outer(inner))
    tfopt.prune(inner, 0.8)
    model.fit(X, Y, verbose=0)
    assert zeros(inner) == pytest.approx(0.8, abs=0.01)
    tfopt.strip(inner)
    model.fit(X, Y, verbose=0)
    assert zeros(inner) == 0
    tfopt.cluster(inner, 4)
    model.fit(X, Y, verbose=0)
    assert len(np.unique(inner.layers[0].kernel.numpy())) == 4


@pytest.mark.parametrize("outer", [around, Pair])
def test_rounding_in_a_part_is_trained_and_predicted_with_and_ends_with_strip(outer):
    inner = backbone()
    model = trained(outer(inner))
    tfopt.quantize_aware(inner)
    other = trained(around(backbone()))
    step = other.train_function
    model.fit(X, Y, verbose=0)
    assert inner.quantization_awareness.step > 0
    assert other.train_function is step  # a model of other layers keeps what it has compiled
    np.testing.assert_allclose(model.predict(X, verbose=0), model(X), atol=1e-5)
    tfopt.strip(inner)
    np.testing.assert_allclose(model.predict(X, verbose=0), model(X), atol=1e-5)


def test_the_file_of_a_model_tells_what_is_held_on_its_parts(tmp_path):
    model = Owner()
    trained(model)
    tfopt.prune(model.inner, 0.8)
    unbuilt = Pair(model.inner)
    model.fit(X, Y, verbose=0)
    assert type(model) is not Owner
    assert plain_class(model) is Owner
    model.save(tmp_path / "held.keras")
    loaded = keras.models.load_model(tmp_path / "held.keras")
    loaded.fit(X, Y, verbose=0)
    assert zeros(loaded.inner) == pytest.approx(0.8, abs=0.01)
    tfopt.strip(model.inner)
    assert type(model) is Owner
    assert type(unbuilt) is Pair


def test_garbage_that_is_due_ends_no_process():
    """Visiting an eager tensor makes its dictionary, which may begin a collection."""
    inner = backbone()
    thresholds = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        young = [tf.constant(number) for number in range(3000)]
        gc.set_threshold(gc.get_count()[0] + len(young) // 2, *thresholds[1:])
        gc.enable()
        assert inner in models_around(inner)  # segfaults if a collection begins within
        assert gc.isenabled()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
