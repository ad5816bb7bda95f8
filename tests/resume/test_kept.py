"""What a model and its callbacks keep in places of their own comes back, or is named in a warning."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import (
    Crash,
    assert_equal,
    assert_goes_on,
    assert_same,
    compiled,
    dataset,
    fit,
    network,
    values,
)

from tfopt import UserError


class OwnSteps(keras.Model):
    """Trains one network by an optimizer that it keeps where ``place`` says."""

    def __init__(self, place, built):
        super().__init__()
        self.net = network()
        self.get_rule = PLACES[place]
        optimizer = keras.optimizers.Adam(0.02)
        if built:
            optimizer.build(self.net.trainable_variables)
        if place == "in a list":
            self.rules = {"of": [None, optimizer]}
        else:
            self.net.compile(optimizer, "mse")

    def call(self, x):
        return self.net(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.net.trainable_variables
        self.get_rule(self).apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


# How to get to the optimizer.
PLACES = {
    "in a list": lambda model: model.rules["of"][1],
    "nested": lambda model: model.net.optimizer,
}


@pytest.mark.parametrize("place", PLACES)
def test_an_optimizer_comes_back_from_wherever_it_is(place, tmp_path):
    def make(built=True):
        model = OwnSteps(place, built)
        model.compile("sgd", jit_compile=False)
        return model, {"x": dataset()}

    rule = PLACES[place]
    trained = assert_goes_on(make, tmp_path / "built")
    assert_same(*(values(rule(model).variables) for model, _ in trained))
    with pytest.raises(UserError, match=r"first step of OwnSteps created .*momentum"):
        fit(lambda: make(built=False), tmp_path / "unbuilt")


class Remembers(keras.callbacks.Callback):
    """Counts in objects of several types, and trains by them."""

    def __init__(self):
        super().__init__()
        self.numbers, self.array = {}, np.zeros(2)

    def on_train_batch_end(self, batch, logs=None):
        self.numbers[batch] = self.numbers.get(batch, 0) + 1
        self.array += 1
        bias = self.model.layers[-1].bias
        bias.assign(bias + 0.01 * float(self.array[0]))

    def get_state(self):
        return {"numbers": self.numbers, "array": self.array}

    def set_state(self, state):
        self.numbers, self.array = state["numbers"], state["array"]


def test_what_a_callback_tells_comes_back_as_it_was(tmp_path):
    def make(callback):
        return lambda: (compiled(), {"x": dataset(), "callbacks": [callback]})

    undisturbed, found = Remembers(), Remembers()
    expected = fit(make(undisturbed))
    with pytest.raises(Crash):
        fit(make(Remembers()), tmp_path, breaks=8)
    assert_equal(fit(make(found), tmp_path), expected)
    assert found.numbers == undisturbed.numbers
    assert found.array[1] == 15


def test_a_callback_that_is_not_asked_or_tells_what_cannot_be_saved_is_named(tmp_path):
    class Counts(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = 0

    class Shows(keras.callbacks.Callback):
        """Remembers nothing."""

    callbacks = [Counts(), Shows()]
    with pytest.warns(RuntimeWarning, match="The state of Counts is not in the checkpoints"):
        fit(lambda: (compiled(), {"x": dataset()}), tmp_path / "counts", callbacks=callbacks)

    class Tells(keras.callbacks.Callback):
        def get_state(self):
            return {1, 2}

        def set_state(self, state):
            raise AssertionError

    with pytest.raises(UserError, match=r"get_state\(\) of the callback Tells"):
        fit(lambda: (compiled(), {"x": dataset()}), tmp_path, callbacks=[Tells()])


class Slowing(keras.optimizers.SGD):
    """Keeps variables that Keras does not track."""

    def build(self, variables):
        super().build(variables)
        self.slow = [tf.Variable(tf.zeros(each.shape), trainable=False) for each in variables]

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient, variable, learning_rate)
        slow = self.slow[self._get_variable_index(variable)]
        slow.assign(0.9 * slow + 0.1 * variable)
        variable.assign(0.5 * variable + 0.5 * slow)


class Counting(keras.layers.Layer):
    """Counts in a variable under a private name."""

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


MODELS = {
    "optimizer": lambda: compiled(Slowing(0.05)),
    "layer": lambda: compiled(None, Counting(), Draws()),
}


@pytest.mark.parametrize("untracked_in", MODELS)
def test_variables_that_keras_does_not_track_come_back(untracked_in, tmp_path):
    assert_goes_on(lambda: (MODELS[untracked_in](), {"x": dataset()}), tmp_path)
