"""Averages over the steps that a mask leaves, and masks as numbers, in integer files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfopt
from tfopt.compress.integers.forms import average_form
from tfopt.compress.integers.own_code import truths_by_choice
from tfopt.compress.quantize_aware import quantize_aware

RNG = np.random.default_rng(0)
LONGEST = 12


def texts(count):
    """Numbers of words, of different length, with zeros behind them."""
    lengths = RNG.integers(1, LONGEST + 1, count)
    words = RNG.integers(1, 30, (count, LONGEST))
    return np.where(np.arange(LONGEST) < lengths[:, None], words, 0)


TEXTS = texts(256)


def average(words, numbers):
    return layers.GlobalAveragePooling1D()(words)


def average_of_attention(words, numbers):
    return layers.GlobalAveragePooling1D(keepdims=True)(
        layers.MultiHeadAttention(2, 4)(words, words)
    )


def average_by_hand(words, numbers):
    there = ops.cast(ops.expand_dims(ops.not_equal(numbers, 0), -1), "float32")
    return ops.sum(words * there, 1) / ops.sum(there, 1)


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("averaged", [average, average_of_attention, average_by_hand])
def test_an_average_over_the_words_that_there_are_is_in_integers(averaged, aware):
    keras.utils.set_random_seed(0)
    entry = keras.Input((LONGEST,), dtype="int32")
    spread = keras.initializers.RandomNormal(stddev=1.0)
    words = layers.Embedding(30, 6, spread, mask_zero=averaged is not average_by_hand)(entry)
    model = keras.Model(entry, layers.Dense(3)(averaged(words, entry)))
    if aware:
        quantize_aware(model)(TEXTS, training=True)
    made = tfopt.quantize(model, representative=TEXTS)
    assert made.fully_integer, made.left_float
    assert made.parity.relative_error < 0.05


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_the_form_gives_what_keras_gives(data_format, keepdims):
    layer = layers.GlobalAveragePooling1D(data_format, keepdims)
    values = tf.constant(RNG.normal(size=(3, 4, 4)).astype("float32"))
    mask = tf.constant([[True, False, True, True], [True] * 4, [False, True, False, False]])
    form = average_form(layer)
    np.testing.assert_allclose(form(values, mask=mask), layer(values, mask=mask), atol=1e-6)
    np.testing.assert_array_equal(form(values), layer(values))
    nothing = form(values, mask=tf.zeros((3, 4), tf.bool))
    assert not np.any(nothing)


def test_truth_values_become_numbers_as_before_and_tensorflow_comes_back():
    plain, truths = tf.cast, tf.constant([True, False])
    with truths_by_choice():
        assert tf.cast is not plain
        for dtype in ("float32", "float16", "int32", "bool", tf.bfloat16):
            told = tf.cast(truths, dtype)
            assert told.dtype == plain(truths, dtype).dtype
            np.testing.assert_array_equal(told, plain(truths, dtype))
        np.testing.assert_array_equal(tf.cast([True], "float32"), [1])
        np.testing.assert_array_equal(tf.cast(tf.constant([1.5]), "int32"), [1])
        sparse = tf.sparse.from_dense(truths)
        assert tf.cast(sparse, tf.float32).values.dtype == tf.float32
    assert tf.cast is plain

    def stopped():
        with truths_by_choice():
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert tf.cast is plain
