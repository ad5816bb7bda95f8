"""What layers add to the loss while several replicas take turns."""

import keras
import pytest

from .replicas import K, O, dense, even, gaps, without, x, y


class Square(K.Layer):
    def call(self, x):
        self.add_loss(0.5 * keras.ops.mean(keras.ops.square(x)))
        return x


class Sum(K.Layer):
    def call(self, x):
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
        return x


def regular():
    return K.Dense(8, activity_regularizer=keras.regularizers.L2(0.1), kernel_regularizer="l2")


def synchronized():
    return K.BatchNormalization(synchronized=True)


def of(layers, loss="mse", **compiled):
    return ((layers, lambda: O.SGD(0.1), loss), compiled, even, {"validation_data": even})


CASES = {
    "add_loss": of(lambda: dense(Square())),
    "activity regularizer": of(lambda: dense(regular())),
    "between exchanges": of(lambda: dense(Square(), synchronized(), Square())),
    "alone": of(lambda: dense(regular()), loss=None),
}


def unmended_even():
    without("added_losses")
    return gaps({name: case for name, case in CASES.items() if name != "alone"})


@pytest.mark.slow
def test_without_the_mend_replicas_take_each_others_losses(alone):
    assert all(weights > 1e-3 for weights, _ in alone(unmended_even).values())


def mended_even(count):
    found = gaps(CASES | {"eager": of(lambda: dense(Square()), run_eagerly=True)}, count)
    # Calls of no replica keep the list that Keras has.
    layer = Square()
    layer(x)
    layer(x)
    found["outside"] = [len(layer.losses) - 1, len(layer._losses) - 1]
    return found


@pytest.mark.slow
def test_with_it_even_batches_train_as_on_one_device(replicas):
    for weights, told in replicas(mended_even, 2).values():
        # BatchNormalization magnifies rounding, by how much depends on the processor: "between
        # exchanges" is 1.9e-6 off on an AMD EPYC, and 9.8e-8 in float64.
        assert weights < 5e-6
        assert told < 1e-6


def of_uneven(layers):
    # The last batch is one of five.
    return ((layers, lambda: O.SGD(0.1), "mse"), {}, (x, y), {"validation_data": (x, y)})


UNEVEN = {
    "summed": of_uneven(lambda: dense(Sum())),
    "mean": of_uneven(lambda: dense(Square())),
    "activity regularizer": of_uneven(lambda: dense(regular())),
}


def mended_uneven():
    return gaps(UNEVEN)


def test_sums_and_uneven_batches_count_as_on_one_device(replicas):
    found = replicas(mended_uneven)
    assert max(weights for weights, _ in found.values()) < 1e-5, found
    assert max(told for _, told in found.values()) < 1e-4, found


def unmended_uneven():
    without("own_losses")
    return gaps(UNEVEN)


@pytest.mark.slow
def test_without_the_mend_of_own_losses_they_do_not(alone):
    assert min(weights for weights, _ in alone(unmended_uneven).values()) > 1e-4
