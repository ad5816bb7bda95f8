"""What a model and its callbacks keep in places of their own comes back, or is told."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import Crash, assert_equal, compiled, dataset, fit, network, went_on

from tfopt import UserError


class OwnSteps(keras.Model):
    """Trains one network by an optimizer that it keeps where ``place`` says."""

    def __init__(self, place, built):
        super().__init__()
        self.net, self.place = network(), place
        optimizer = keras.optimizers.Adam(0.02)
        if built:
            optimizer.build(self.net.trainable_variables)
        if place == "list":
            self.rules = [None, optimizer]
        elif place == "dict":
            self.rules = {"of": {"net": optimizer}}
        elif place == "private":
            self._rule = optimizer
        elif place == "object":
            self.helper = Helper(optimizer)
        else:
            self.net.compile(optimizer, "mse")

    def call(self, x):
        return self.net(x)

    def rule(self):
        return {
            "list": lambda: self.rules[1],
            "dict": lambda: self.rules["of"]["net"],
            "private": lambda: self._rule,
            "object": lambda: self.helper.rule,
            "nested": lambda: self.net.optimizer,
        }[self.place]()

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.net.trainable_variables
        self.rule().apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class Helper:
    def __init__(self, rule):
        self.rule = rule


@pytest.mark.parametrize("place", ["list", "dict", "private", "object", "nested"])
def test_an_optimizer_comes_back_from_wherever_it_is(place, tmp_path):
    def make(built=True):
        model = OwnSteps(place, built)
        model.compile("sgd", jit_compile=False)
        return model, {"x": dataset()}

    expected = fit(make)
    found = went_on(make, tmp_path / "built", breaks=(8,))
    assert_equal(found, expected)
    for one, other in zip(found[0].rule().variables, expected[0].rule().variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    told = {
        "list": r"optimizer rules\[1\] of OwnSteps is not built",
        "dict": r"optimizer rules\['of'\]\['net'\] of",
        "private": "optimizer _rule of",
        "object": "optimizer helper.rule of",
        # Whether that one trains is seen when it does.
        "nested": "first step of OwnSteps made .*momentum",
    }
    with pytest.raises(UserError, match=told[place]):
        fit(lambda: make(built=False), tmp_path / "unbuilt")


def test_a_layer_that_was_compiled_before_may_have_an_optimizer_that_is_not_built(tmp_path):
    def make():
        inner = network()
        inner.compile("adam", "mse")
        model = keras.Sequential([keras.Input((6,)), inner])
        model.compile("adam", "mse", jit_compile=False)
        return model, {"x": dataset()}

    assert_equal(went_on(make, tmp_path, breaks=(8,)), fit(make))


class Counts(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self._count = tf.Variable(0.0, trainable=False)

    def call(self, x, training=None):
        if training:
            self._count.assign_add(1.0)
        return x * (1 + 0.01 * self._count)


class Draws(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self._rng = tf.random.Generator.from_seed(1)

    def call(self, x, training=None):
        return x + self._rng.normal(tf.shape(x)) if training else x


@pytest.mark.parametrize("layer", [Counts, Draws])
def test_variables_under_a_private_name_come_back(layer, tmp_path):
    def make():
        return compiled(None, layer()), {"x": dataset()}

    assert_equal(went_on(make, tmp_path, breaks=(8,)), fit(make))


def test_a_variable_that_comes_up_while_it_trains_is_told(tmp_path):
    class Late(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.layers[0]._late = tf.Variable(0.0)

    with pytest.warns(RuntimeWarning, match="_late.* came up while it trains") as told:
        fit(lambda: (compiled(), {"x": dataset()}), tmp_path, callbacks=[Late()])
    assert len(told) == 1
