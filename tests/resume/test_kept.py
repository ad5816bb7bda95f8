"""What a model and its callbacks keep in places of their own comes back, or is named in a warning."""

import collections

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


class Helper:
    def __init__(self, rule):
        self.rule = rule


class OwnSteps(keras.Model):
    """Trains one network by an optimizer that it keeps where ``place`` says."""

    def __init__(self, place, built):
        super().__init__()
        self.net = network()
        self.get_rule = PLACES[place][0]
        optimizer = keras.optimizers.Adam(0.02)
        if built:
            optimizer.build(self.net.trainable_variables)
        if place == "in a list":
            self.rules = {"of": [None, optimizer]}
        elif place == "in an object":
            self.helper = Helper(optimizer)
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


# How to get to the optimizer, and what is said of one that is not built.
PLACES = {
    "in a list": (
        lambda model: model.rules["of"][1],
        r"optimizer rules\['of'\]\[1\] of OwnSteps is not",
    ),
    "in an object": (lambda model: model.helper.rule, "optimizer helper.rule of"),
    # Whether that one trains is seen when it does.
    "nested": (lambda model: model.net.optimizer, "first step of OwnSteps made .*momentum"),
}


@pytest.mark.parametrize(
    "place", ["in a list", pytest.param("in an object", marks=pytest.mark.slow), "nested"]
)
def test_an_optimizer_comes_back_from_wherever_it_is(place, tmp_path):
    def make(built=True):
        model = OwnSteps(place, built)
        model.compile("sgd", jit_compile=False)
        return model, {"x": dataset()}

    rule, message = PLACES[place]
    trained = assert_goes_on(make, tmp_path / "built")
    assert_same(*(values(rule(model).variables) for model, _ in trained))
    with pytest.raises(UserError, match=message):
        fit(lambda: make(built=False), tmp_path / "unbuilt")


def test_a_layer_that_was_compiled_before_may_have_an_optimizer_that_is_not_built(tmp_path):
    def make():
        inner = network()
        inner.compile("adam", "mse")
        model = keras.Sequential([keras.Input((6,)), inner])
        model.compile("adam", "mse", jit_compile=False)
        return model, {"x": dataset()}

    assert_goes_on(make, tmp_path)


class Remembers(keras.callbacks.Callback):
    """Counts in objects of several types, all of which it trains by."""

    def __init__(self):
        super().__init__()
        self.numbers = {}
        self.last = ()
        self.tensor = tf.constant(0.0)
        self.array = np.zeros(2)

    def on_train_batch_end(self, batch, logs=None):
        self.numbers[batch] = self.numbers.get(batch, 0) + 1
        self.last = (*self.last[-1:], batch)
        self.tensor = self.tensor + 1.0
        self.array += 1
        bias = self.model.layers[-1].bias
        bias.assign(bias + 0.01 * (self.tensor + float(self.array[0])))


def test_what_a_callback_counts_in_comes_back_as_it_was(tmp_path):
    def make(callback):
        return lambda: (compiled(), {"x": dataset(), "callbacks": [callback]})

    undisturbed, found = Remembers(), Remembers()
    expected = fit(make(undisturbed))
    with pytest.raises(Crash):
        fit(make(Remembers()), tmp_path, breaks=8)
    assert_equal(fit(make(found), tmp_path), expected)
    assert (found.numbers, found.last) == (undisturbed.numbers, undisturbed.last)
    assert isinstance(found.tensor, tf.Tensor)
    assert float(found.tensor) == found.array[1] == 15


class Mine(dict):
    """A class of one's own."""


class TooMuch(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.table = {"best": 0.5, "better": min}
        self.mine, self.lazy, self.seen = Mine(), collections.defaultdict(list), {1, 2}
        self.variable, self.mean, self.ema = tf.Variable(0.0), keras.metrics.Mean(), network()
        # What can be called, and lists of it, remember nothing.
        self.loss, self.calls = keras.losses.Huber(), [print, lambda epoch: epoch]

    def on_train_begin(self, logs=None):
        # Nor does what has the variables of the model alone.
        self.part, self.weights = self.model.layers[0], self.model.trainable_variables
        self.rule, self.rate = self.model.optimizer, self.model.optimizer.learning_rate

    def on_train_batch_end(self, batch, logs=None):
        self.late = getattr(self, "late", None) or tf.Variable(0.0)


def test_what_of_a_callbacks_is_of_no_type_that_is_kept_is_told(tmp_path):
    with pytest.warns(RuntimeWarning, match="Not in the checkpoints") as warned:
        fit(lambda: (compiled(), {"x": dataset()}), tmp_path, callbacks=[TooMuch()])
    shown = str(warned[-1].message)
    assert len(warned) == 2  # once, and once more for what is made later
    assert shown.count("TooMuch.") == 8
    assert r"TooMuch.seen (set)" in shown
    assert r"TooMuch.mine (Mine)" in shown
    assert r"TooMuch.lazy (defaultdict)" in shown
    for name in ("variable", "mean", "ema", "late", "table"):
        assert f"TooMuch.{name} (" in shown


def test_what_get_state_returns_must_be_something_that_can_be_saved(tmp_path):
    class Tells(keras.callbacks.Callback):
        def get_state(self):
            return Mine()

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


class Fading(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self):
        self.rate = tf.Variable(0.05, trainable=False)

    def __call__(self, step):
        self.rate.assign(self.rate * 0.95)
        return self.rate

    def get_config(self):
        return {}


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
    "schedule": lambda: compiled(keras.optimizers.SGD(Fading(), momentum=0.5)),
    "layer": lambda: compiled(None, Counting(), Draws()),
}


@pytest.mark.parametrize(
    "kept_by", ["optimizer", pytest.param("schedule", marks=pytest.mark.slow), "layer"]
)
def test_variables_that_keras_does_not_track_come_back(kept_by, tmp_path):
    assert_goes_on(lambda: (MODELS[kept_by](), {"x": dataset()}), tmp_path)
