"""How losses of a model's own may count examples: counted right, or refused, or told.

The cases are ways in which people write them. 69 examples in batches of 16, but for those whose
number is to be known when the step is traced.
"""

import types
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt

from . import own_steps
from .own_steps import K, Own, compared, gap, made, x, y


def taken():
    def squares(model, inputs, wanted):
        return tf.reduce_mean(tf.square(model(inputs) - wanted), -1)

    def picked(self, inputs, wanted):
        # Of each batch only the first examples, all of them the first replica's, are picked.
        chosen = tf.cast(inputs[:, 0] > 0, tf.float32)
        return tf.reduce_sum(chosen * squares(self, inputs, wanted)) / tf.reduce_sum(chosen)

    def weighed(self, inputs, wanted):
        certainty = self.trainable_variables[-1][0]
        return tf.exp(-certainty) * tf.reduce_mean(squares(self, inputs, wanted)) + certainty

    def quotient(self, inputs, wanted):
        return tf.reduce_mean(squares(self, inputs, wanted)) / (
            2.0 + self.trainable_variables[-1][0]
        )

    def neighbours(self, inputs, wanted):
        outputs = self(inputs)
        return tf.reduce_mean(tf.square(outputs[1:] - outputs[:-1])) + tf.reduce_mean(outputs)

    signs = x[:65].copy()
    for first in range(0, 65, 16):
        signs[first : first + 8, 0] = np.abs(signs[first : first + 8, 0])
        signs[first + 8 : first + 16, 0] = -1.0

    def trained(model):
        return own_steps.trained(model, signs, y[:65])

    def step_of_its_own():
        model = made(keras.Model)
        model.train_step = types.MethodType(Own.train_step, model)
        model.loss_of = types.MethodType(Own.loss_of, model)
        model.changed = types.MethodType(Own.changed, model)
        return model

    def loss_of_its_own():
        model = made(keras.Model)
        model.compute_loss = lambda x=None, y=None, y_pred=None, sample_weight=None, training=True: (
            tf.reduce_mean(tf.square(y_pred - y)) + 1.0
        )
        return model

    found = compared(
        {
            "nothing picked": (Own, {"loss_of": picked}),
            "nothing there": (Own, {"loss_of": weighed}),
            "neighbours": (Own, {"loss_of": neighbours}),
            "divided by what is trained": (Own, {"loss_of": quotient}),
        },
        trained,
    )
    for build in (step_of_its_own, loss_of_its_own):
        with tfopt.distribute(logical_cpus=2):
            several = build()
        found[build.__name__] = [gap(trained(build()), trained(several)), []]
    return found


def refused():
    anchors = np.random.default_rng(1).normal(size=(4, 6)).astype("float32")

    def by_places(self, inputs, wanted):
        outputs = self(inputs)
        return tf.reduce_sum(tf.square(outputs - wanted)) / (outputs.shape[0] * outputs.shape[1])

    def by_examples_inside(self, inputs, wanted):
        outputs = self(inputs)
        return tf.reduce_sum(tf.square(outputs - wanted) / outputs.shape[0])

    def by_the_global_batch(self, inputs, wanted):
        return tf.reduce_sum(tf.reduce_mean(tf.square(self(inputs) - wanted), -1)) / 16

    def beside_rows(self, inputs, wanted):
        rows = tf.concat([self(inputs) - wanted, self(anchors)], 0)
        return tf.reduce_mean(tf.reduce_mean(tf.square(rows), -1))

    @tf.function
    def normed(weights):
        return weights / tf.reduce_sum(weights)

    def shared_out(self, inputs, wanted):
        each = tf.reduce_mean(tf.square(self(inputs) - wanted), -1)
        return tf.reduce_sum(each * normed(tf.abs(inputs[:, 0])))

    def trained(model):
        data = tf.data.Dataset.from_tensor_slices((x[:64], y[:64])).batch(16, drop_remainder=True)
        model.fit(data, epochs=2, verbose=0)
        return model.get_weights()

    kinds = (by_places, by_examples_inside, by_the_global_batch, beside_rows, shared_out)
    return compared({kind.__name__: (Own, {"loss_of": kind}) for kind in kinds}, trained)


def no_mean():
    def each_class(wanted, given):
        given, wanted = tf.sigmoid(given), tf.cast(wanted > 0, tf.float32)
        return 1 - (2 * tf.reduce_sum(given * wanted, 0) + 1) / (
            tf.reduce_sum(given + wanted, 0) + 1
        )

    def groups(wanted, given):
        group = tf.cast(wanted[:, 0] > 0, tf.int32)
        sums = tf.math.unsorted_segment_sum(given - wanted, group, tf.reduce_max(group) + 1)
        return tf.reduce_mean(tf.square(tf.gather(sums, group)), -1)

    def net(loss, *layers, inputs=None):
        keras.utils.set_random_seed(0)
        inputs = h = keras.Input((6,)) if inputs is None else inputs
        for layer in (*layers, K.Dense(3)):
            h = layer(h)
        model = keras.Model(inputs, h)
        model.compile("sgd", loss, jit_compile=False)
        return model

    tokens = np.random.default_rng(1).integers(0, 5, (69, 7))
    with tfopt.distribute(logical_cpus=2):
        cases = {
            "each class": (net(each_class), x),
            "groups": (net(groups), x),
            "masked": (
                net("mse", K.Embedding(5, 4, mask_zero=True), K.LSTM(3), inputs=keras.Input((7,))),
                tokens,
            ),
            "sparse": (net("mse", inputs=keras.Input((6,), sparse=True)), tf.sparse.from_dense(x)),
        }
    found = {}
    for name, (model, inputs) in cases.items():
        data = tf.data.Dataset.from_tensor_slices((inputs, y)).batch(16)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(data, verbose=0)
        found[name] = [str(each.message) for each in caught if each.category is RuntimeWarning]
    return found


def ragged():
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 8, size=64)
    with tfopt.distribute(logical_cpus=2) as scope:
        strategy = scope.strategy
    rows = tf.ragged.constant([list(rng.integers(1, 9, size=k)) for k in lengths], dtype=tf.int32)
    data = tf.data.Dataset.from_tensor_slices((rows, tf.cast(rows, tf.float32) * 0.1)).batch(16)

    class Tokens(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = K.Embedding(10, 1)
            self.table.build((None,))

        def call(self, tokens):
            return self.table(tokens)[:, 0]

        def train_step(self, data):
            tokens, wanted = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(tokens.flat_values) - wanted.flat_values))
            self.optimizer.apply(
                tape.gradient(loss, self.trainable_variables), self.trainable_variables
            )
            return {"own": loss, "perplexity": tf.exp(loss), "odd": tf.math.is_nan(loss)}

    def weights_of(model):
        told = model.fit(data, epochs=2, verbose=0).history
        return [*model.get_weights(), np.array(told["own"]), np.array(told["perplexity"])]

    def made():
        keras.utils.set_random_seed(0)
        model = Tokens()
        model.compile(keras.optimizers.SGD(0.5), jit_compile=False)
        return model

    with strategy.scope():
        several = made()
    return gap(weights_of(made()), weights_of(several))


@pytest.mark.slow
def test_what_is_there_on_some_replicas_only_counts_by_what_is_there(replicas):
    found = replicas(taken)
    _, told = found.pop("neighbours")
    assert "compares the examples" in told[0]
    for apart, told in found.values():
        assert apart is not None, told
        assert apart < 1e-6
    assert len(found) == 5


def test_numbers_of_a_replicas_own_are_refused(replicas):
    found = replicas(refused)
    gaps = {name: apart for name, (apart, _) in found.items()}
    texts = {name: "".join(told) for name, (_, told) in found.items()}
    assert gaps["by_the_global_batch"] < 1e-6
    assert texts["by_the_global_batch"] == ""
    assert {name for name, apart in gaps.items() if apart is None} == {
        "by_places",
        "by_examples_inside",
        "beside_rows",
        "shared_out",
    }
    assert "divided by 24" in texts["by_places"]
    assert "values divided by 8" in texts["by_examples_inside"]
    assert "rows of your own" in texts["beside_rows"]
    assert "a sum of shares" in texts["shared_out"]


@pytest.mark.slow
def test_what_is_no_loss_for_each_example_is_told_and_nothing_else(replicas):
    found = replicas(no_mean)
    assert "numbers that are no mean over examples" in found["each class"][0]
    assert "compares the examples" in found["groups"][0]
    assert found["masked"] == found["sparse"] == []


def test_a_mean_over_ragged_values_counts_by_how_many_they_are(replicas):
    assert replicas(ragged) < 1e-5
