"""Choices between values that others read too, in integer files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfopt
from tfopt.compress.integers.own_code import keep_choices_apart
from tfopt.compress.quantize_aware import quantize_aware
from tfopt.export import litert as conversion

ROWS = np.random.default_rng(0).normal(size=(256, 16)).astype("float32")


@keras.saving.register_keras_serializable("copies_apart")
class OwnChoice(layers.Layer):
    def call(self, h):
        return tf.where(h > 0.0, h, -0.5 * h)


CHOICES = {
    "the larger of two signs": lambda h: ops.maximum(h, -h),
    "the smaller of what adds up": lambda h: ops.minimum(h, 1 - h),
    "beside their mean": lambda h: ops.maximum(h, ops.mean(h, -1, keepdims=True)),
    "cut off and added": lambda h: h + 10 * ops.clip(h, -0.05, 0.05),
    "below zero": lambda h: h + 2 * ops.minimum(h, 0.0),
    "behind another shape": lambda h: (
        h + 10 * ops.reshape(ops.clip(ops.reshape(h, (-1, 4, 8)), -0.05, 0.05), (-1, 32))
    ),
    "less the sum of exponentials": lambda h: h - ops.logsumexp(h - 4, axis=-1, keepdims=True),
    "of one's own": OwnChoice(),
}


def model_with(choice):
    keras.utils.set_random_seed(0)
    x = keras.Input((16,))
    return keras.Model(x, layers.Dense(10)(choice(layers.Dense(32)(x))))


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_what_others_read_keeps_its_range(choice, monkeypatch):
    model = model_with(choice)
    made = tfopt.quantize(model, representative=ROWS)
    assert made.fully_integer
    assert made.parity.relative_error < 0.03
    assert made.notes == ()
    monkeypatch.setattr(conversion, "keep_choices_apart", lambda graph, results: None)
    without = tfopt.quantize(model, representative=ROWS)
    assert without.parity.relative_error > 5 * made.parity.relative_error


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_trained_ranges_are_kept_too(choice):
    model = model_with(choice)
    quantize_aware(model)(ROWS, training=True)
    made = tfopt.quantize(model, representative=ROWS)
    assert made.fully_integer
    assert made.parity.relative_error < 0.03


def choices_in(model):
    """The kinds of operators behind the traced model's choices."""

    @tf.function(input_signature=[tf.TensorSpec((None, 16))])
    def served(rows):
        result = model(rows, training=False)
        keep_choices_apart(tf.compat.v1.get_default_graph(), [result])
        return result

    graph = served.get_concrete_function().graph
    return [
        [taken.op.type for taken in operation.inputs]
        for operation in graph.get_operations()
        if operation.type in ("Maximum", "Minimum")
    ]


def test_a_choice_that_alone_reads_its_values_takes_them_as_they_are():
    """A product more would cost time, and keep the converter from knowing hard swish."""
    alone = model_with(lambda h: ops.maximum(h, 0.3))
    assert choices_in(alone) == [["BiasAdd", "Const"]]
    together = model_with(lambda h: h + ops.maximum(h, 0.3))
    assert choices_in(together) == [["Mul", "Const"]]


def test_what_the_model_gives_is_a_reader_too():
    x = keras.Input((16,))
    h = layers.Dense(8)(x)
    model = keras.Model(x, [h, layers.Dense(4)(ops.clip(h, -0.3, 0.3))])
    made = tfopt.quantize(model, representative=ROWS)
    wide, _ = made.predict(ROWS)
    assert np.abs(wide).max() > 1.0
    assert made.parity.relative_error < 0.05
