"""Functions that a ``call`` of one's own takes from TensorFlow and Keras, in integer files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfopt
from tfopt.compress.integers.own_code import own_code_in_integers
from tfopt.compress.quantize_aware import quantize_aware

RNG = np.random.default_rng(0)
EXAMPLES = RNG.normal(size=(128, 5, 6)).astype("float32")
OWN = {
    "square": lambda x: tf.square(x),
    "keras_square": ops.square,
    "negative_exponent": lambda x: tf.exp(-tf.math.square(x)),
    "cube": lambda x: x**3,
    "power": lambda x: tf.pow(tf.sigmoid(x), 4),
    "squash": lambda x: x * tf.sqrt(tf.reduce_sum(tf.square(x), -1, keepdims=True) + 1e-7),
    "normalize": lambda x: ops.normalize(x, -1),
    "zeros_like": lambda x: tf.where(x > 0, x, tf.zeros_like(x)),
    "keras_zeros_like": lambda x: ops.where(x > 0, x, ops.zeros_like(x)),
    "joined_zeros": lambda x: tf.concat([x, tf.zeros_like(x[:, :1])], 1),
    "elu": lambda x: keras.activations.elu(x),
    "gelu": lambda x: tf.nn.gelu(x),
    "keras_gelu": lambda x: ops.gelu(x, approximate=False),
    "one_hot": lambda x: tf.one_hot(tf.argmax(x, -1), 8),
}


class Own(layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("name", OWN)
def test_own_code_computes_in_integers_and_close(name, aware):
    keras.utils.set_random_seed(0)
    entry = keras.Input((5, 6))
    values = Own(OWN[name])(layers.Dense(8)(entry))
    model = keras.Model(entry, layers.Dense(3)(layers.Flatten()(values)))
    if aware:
        quantize_aware(model)(EXAMPLES, training=True)
    made = tfopt.quantize(model, representative=EXAMPLES)
    assert made.fully_integer, made.left_float
    # A place of the largest may change where two are a step apart.
    assert made.parity.relative_error < (0.25 if name == "one_hot" else 0.08)


def traced(function, *values):
    """What a function gives inside the context, in a graph."""
    specs = [tf.TensorSpec([None, *value.shape[1:]], value.dtype) for value in values]
    with own_code_in_integers():
        graph = tf.function(function, input_signature=specs).get_concrete_function()
    return graph(*values)


@pytest.mark.parametrize("name", OWN)
def test_the_same_results_in_float(name):
    values = tf.constant(EXAMPLES)
    np.testing.assert_allclose(traced(OWN[name], values), OWN[name](values), atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.one_hot(x, 4, dtype="int32"),
        lambda x: tf.one_hot(x, 4, axis=1),
        lambda x: tf.one_hot(x, 4, 2.0, 1.0),
        lambda x: tf.one_hot(x, 3),
        lambda x: tf.zeros_like(x),
        lambda x: tf.zeros_like(x, "float32"),
        lambda x: -x,
        lambda x: x**2,
        lambda x: tf.square(tf.cast(x, "float64")),
        lambda x: tf.cast(x, "float32") ** 0.5,
        lambda x: tf.pow(tf.cast(x, "float32"), [[1.0, 2.0]]),
    ],
)
def test_what_it_does_not_mean_is_as_it_was(function):
    values = tf.constant([[1, 2], [0, 3]])
    given, wanted = traced(function, values), function(values)
    assert given.dtype == wanted.dtype
    np.testing.assert_allclose(given, wanted, rtol=1e-6)


def test_tensorflow_comes_back():
    homes = [
        *((tf, name) for name in ("square", "negative", "pow", "zeros_like", "one_hot")),
        *((tf.math, name) for name in ("square", "negative", "pow")),
        *((tf.nn, name) for name in ("elu", "gelu")),
        *((tf.Tensor, name) for name in ("__neg__", "__pow__")),
    ]
    plain = [getattr(home, name) for home, name in homes]
    with own_code_in_integers():
        assert tf.square is not plain[0]
        np.testing.assert_array_equal(-tf.constant([1.0]), [-1])
        np.testing.assert_array_equal(tf.square(3.0), 9)
        np.testing.assert_array_equal(tf.zeros_like([1.0]), [0])
        np.testing.assert_array_equal(tf.one_hot([1], 2), [[0, 1]])
    assert all(getattr(home, name) is own for (home, name), own in zip(homes, plain, strict=True))

    def stopped():
        with own_code_in_integers():
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert all(getattr(home, name) is own for (home, name), own in zip(homes, plain, strict=True))
