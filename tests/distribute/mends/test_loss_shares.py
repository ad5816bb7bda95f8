"""Losses of replicas that hold more, or less, than others."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt

from .replicas import K, L, O, built, dense, even, gaps, largest, trained, without, x, y

rng = np.random.default_rng(1)
words = rng.integers(1, 9, size=(64, 7))
words[:32, 2:] = 0
words[50:, 6:] = 0
text = (words, rng.integers(0, 2, size=(64, 7)))
weights = {"sample_weight": rng.uniform(size=69).astype("float32")}


def sgd():
    return O.SGD(0.01)


def masked():
    return [K.Embedding(9, 4, mask_zero=True), K.LSTM(4, return_sequences=True), K.Dense(2)]


def of(loss, layers=dense, data=(x, y), inputs=6, **fitted):
    return ((layers, sgd, loss, inputs), {}, data, {"validation_data": data, **fitted})


def number(targets, guesses):
    return keras.ops.mean(keras.ops.square(targets - guesses))


def of_parts(targets, guesses):
    # One is shared out by Keras, the other is not.
    return L.MeanAbsoluteError()(targets, guesses) + number(targets, guesses)


CASES = {
    "uneven": of("mse"),
    "weighted": of(L.MeanSquaredError(), **weights),
    "mean of weights": of(L.MeanSquaredError("mean_with_sample_weight"), **weights),
    "masked": of(L.SparseCategoricalCrossentropy(from_logits=True), masked, text, 7),
    "one number": of(number),
    "of parts": of(of_parts),
}
# Without the mend, too.
FAIR = {
    "summed": of(L.MeanSquaredError("sum")),
    "regularized": of("mse", lambda: dense(K.Dense(4, kernel_regularizer="l2"))),
}


def unmended():
    without("loss_shares")
    return gaps(CASES)


@pytest.mark.slow
def test_without_the_mend_uneven_batches_and_masks_train_other_weights(alone):
    found = alone(unmended)
    assert all(weights > 1e-5 for weights, _ in found.values())
    assert all(found[name][0] > 1e-3 for name in set(found) - {"masked"})


def mended(count):
    return gaps(CASES | FAIR, count)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_with_it_they_and_the_losses_are_those_of_one_device(replicas, alone, count):
    found = replicas(mended, 2) if count == 2 else alone(mended, count)
    for name, (weights, told) in found.items():
        assert weights < 1e-6
        # Sums of a batch are around 20, where float32 has steps of 2e-6.
        assert told < (4e-6 if name == "summed" else 1e-6), name


def eager_and_own():
    class Own(keras.Sequential):
        def train_step(self, data):
            inputs, targets = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(inputs, targets, self(inputs, training=True))
            self.optimizer.apply(
                tape.gradient(loss, self.trainable_variables), self.trainable_variables
            )
            return {"loss": loss}

    def own():
        keras.utils.set_random_seed(0)
        model = Own([keras.Input((6,)), *dense()])
        model.compile("sgd", "mse", jit_compile=False)
        return model

    with tfopt.distribute(logical_cpus=4):
        eager, stepping = built(dense, sgd, run_eagerly=True), own()
    plain, told = trained(built(dense, sgd), (x, y))
    weights, history = trained(eager, (x, y))
    one, several = own(), stepping
    for model in (one, several):
        model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return [
        largest(plain, weights),
        largest(told.values(), history.values()),
        largest(one.get_weights(), several.get_weights()),
    ]


@pytest.mark.slow
def test_a_step_run_eagerly_and_a_train_step_of_ones_own_share_alike(alone):
    assert all(each < 1e-6 for each in alone(eager_and_own))


def inside_a_function():
    class Own(keras.Sequential):
        def loss_of(self, a, b):
            return L.MeanSquaredError()(b, self(a, training=True))

        def train_step(self, data):
            weights = self.trainable_variables

            @tf.function
            def gradients_of(a, b):
                with tf.GradientTape() as tape:
                    loss = self.loss_of(a, b)
                return loss, tape.gradient(loss, weights)

            loss, gradients = gradients_of(*data)
            self.optimizer.apply(gradients, weights)
            return {"loss": loss}

    class LossAlone(Own):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.function(self.loss_of)(*data)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    def own(kind=Own):
        keras.utils.set_random_seed(0)
        model = kind([keras.Input((6,)), *dense()])
        model.compile("sgd", "mse", jit_compile=False)
        return model

    with tfopt.distribute(logical_cpus=2):
        several, alone = own(), own(LossAlone)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        weights, _ = trained(several, even)
    told = any("counts the same" in str(each.message) for each in told)
    try:
        refused = trained(alone, even)
    except tfopt.UserError as error:
        refused = str(error)
    return [told, refused, largest(weights, trained(own(), even)[0])]


def test_a_loss_inside_a_function_of_the_step_is_keras_own_share_and_told(replicas):
    told, refused, gap = replicas(inside_a_function)
    assert told is True
    assert "of which tfopt cannot tell how it adds up" in refused
    assert "PartitionedCall" in refused
    assert gap < 1e-6
