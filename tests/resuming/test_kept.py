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


class Remembers(keras.callbacks.Callback):
    """Counts in objects of several types, all of which it trains by."""

    def __init__(self):
        super().__init__()
        self.numbers = collections.defaultdict(int)
        self.ordered = collections.OrderedDict()
        self.counted = collections.Counter()
        self.last = collections.deque(maxlen=2)
        self.tensor = tf.constant(0.0)
        self.variable = self.first = tf.Variable(0.0)
        self.several = {"a": [tf.Variable([0, 0])], "b": keras.Variable(0.0)}
        self.rng = tf.random.Generator.from_seed(3)

    def on_train_batch_end(self, batch, logs=None):
        self.numbers[batch] += 1
        self.ordered[batch] = None
        self.ordered.move_to_end(batch)
        self.counted.update([batch, batch])
        self.last.append(batch)
        self.tensor = self.tensor + 1.0
        self.variable.assign_add(1.0)
        self.several["a"][0].assign_add([1, 2])
        self.several["b"].assign(self.several["b"] + 1)
        drawn = float(self.rng.uniform(())) + float(self.variable) + float(self.tensor)
        bias = self.model.layers[-1].bias
        bias.assign(bias + 0.01 * drawn)


def test_what_a_callback_counts_in_comes_back_as_it_was(tmp_path):
    def make(callback):
        return lambda: (compiled(), {"x": dataset(), "callbacks": [callback]})

    undisturbed, found = Remembers(), Remembers()
    expected = fit(make(undisturbed))
    with pytest.raises(Crash):
        fit(make(Remembers()), tmp_path, breaks=8)
    assert_equal(fit(make(found), tmp_path), expected)
    for name in ("numbers", "ordered", "counted", "last"):
        one, other = getattr(found, name), getattr(undisturbed, name)
        assert type(one) is type(other)
        assert list(one) == list(other)
        assert one == other
    assert found.numbers["new"] == 0
    assert found.last.maxlen == 2
    assert isinstance(found.tensor, tf.Tensor)
    assert found.variable is found.first
    assert float(found.variable) == float(found.tensor) == 15
    assert found.several["a"][0].numpy().tolist() == [15, 30]
    assert float(found.several["b"]) == 15


class Mine(dict):
    """A class of one's own."""


class TooMuch(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.mine, self.lazy = Mine(), collections.defaultdict(lambda: 3)

    def on_train_batch_end(self, batch, logs=None):
        self.late = getattr(self, "late", None) or tf.Variable(0.0)


def test_what_of_a_callbacks_is_of_no_type_that_is_kept_is_told(tmp_path):
    with pytest.warns(RuntimeWarning, match="Not in the checkpoints") as told:
        fit(lambda: (compiled(), {"x": dataset()}), tmp_path, callbacks=[TooMuch()])
    shown = str(told[-1].message)
    assert r"TooMuch.mine (Mine)" in shown
    assert r"TooMuch.lazy (defaultdict of <lambda>)" in shown
    assert r"TooMuch.late (a variable made while it trains)" in shown


def test_what_get_state_returns_must_be_something_that_can_be_saved(tmp_path):
    class Tells(keras.callbacks.Callback):
        def get_state(self):
            return Mine()

        def set_state(self, state):
            raise AssertionError

    with pytest.raises(UserError, match=r"get_state\(\) of the callback Tells"):
        fit(lambda: (compiled(), {"x": dataset()}), tmp_path, callbacks=[Tells()])
