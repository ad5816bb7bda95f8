"""What stands for TensorFlow's functions while a model is traced gives what they give."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from tensorflow.python.ops import array_ops

from tfopt.compress.integers.functions import functions_of_integers, functions_of_litert
from tfopt.compress.integers.graph_edits import keep_choices_apart

RNG = np.random.default_rng(0)
ROWS = tf.constant(RNG.normal(size=(6, 5, 6)).astype("float32"))
IMAGES = tf.constant(RNG.random((4, 12, 12, 3)).astype("float32"))
NUMBERS = tf.constant([[1, 2], [0, 3]])
PLACES = tf.constant([[0, 3, 1], [2, 5, -1]])
MATRIX = RNG.random((5, 5)).astype("float32")
ONCE = [1, 1, 1, 1]


def patches(sizes, strides, rates=ONCE, padding="VALID"):
    return lambda x: tf.image.extract_patches(x, sizes, strides, rates, padding)


# A function, and what it is called on; in eager mode and in a graph with a free batch.
CALLS = {
    "zeros_like": (lambda x: tf.zeros_like(x), ROWS),
    "one_hot": (lambda x: tf.one_hot(tf.argmax(x, -1), 8), ROWS),
    "one_hot_on_an_axis": (lambda x: tf.one_hot(x, 4, axis=1), PLACES),
    "one_hot_of_keras": (lambda x: ops.one_hot(x, 4), PLACES),
    "half_one_hot_of_keras": (lambda x: ops.one_hot(x, 4, axis=0, dtype="float16"), PLACES),
    "whole_one_hot": (lambda x: tf.one_hot(x, 4, dtype="int32"), PLACES),
    "one_hot_of_values": (lambda x: tf.one_hot(x, 4, 2.0, 1.0), PLACES),
    "whole_zeros": (lambda x: tf.zeros_like(x), NUMBERS),
    "float_zeros": (lambda x: tf.zeros_like(x, "float32"), NUMBERS),
    "turned": (lambda x: tf.reverse(x, [1, -1]), ROWS),
    "turned_on_no_axis": (lambda x: tf.reverse(x, []), ROWS),
    "turned_numbers": (lambda x: tf.reverse(x, [1]), NUMBERS),
    "turned_on_six_axes": (lambda x: tf.reverse(x[:, :, None, None, None], [5]), ROWS),
    "rolled": (lambda x: tf.roll(x, -7, 1), ROWS),
    "rolled_twice": (lambda x: tf.roll(x, [1, 1], [1, 1]), ROWS),
    "rolled_by_nothing": (lambda x: tf.roll(x, 0, 1), ROWS),
    "rolled_examples": (lambda x: tf.roll(x, 1, 0), ROWS),
    "rolled_numbers": (lambda x: tf.roll(x, 1, 1), NUMBERS),
    "einsum": (lambda x: tf.einsum("ij,bjf->bif", tf.constant(MATRIX), x), ROWS),
    "einsum_of_keras": (lambda x: ops.einsum("ij, bjf -> bif", MATRIX, x), ROWS),
    "einsum_of_two": (lambda x: tf.einsum("bif,bjf->bij", x, x), ROWS),
    "largest": (lambda x: ops.argmax(x, axis=-1), ROWS),
    "largest_kept": (lambda x: ops.argmax(x, axis=1, keepdims=True), ROWS),
    "smallest_of_all": (lambda x: ops.argmin(x), ROWS),
    "smallest_of_all_kept": (lambda x: ops.argmin(x, keepdims=True), ROWS),
    "blocks": (patches([1, 4, 4, 1], [1, 4, 4, 1]), IMAGES),
    "blocks_with_a_rest": (patches([1, 5, 5, 1], [1, 5, 5, 1]), IMAGES),
    "overlapping": (patches([1, 4, 4, 1], [1, 2, 2, 1], padding="SAME"), IMAGES),
    "oblong": (patches([1, 2, 3, 1], [1, 2, 3, 1]), IMAGES),
    "wide_apart": (patches([1, 3, 3, 1], [1, 2, 2, 1], [1, 2, 2, 1], "SAME"), IMAGES),
    "single_pixels": (patches(ONCE, ONCE), IMAGES),
    "whole_blocks": (
        lambda x: patches([1, 2, 2, 1], [1, 2, 2, 1])(tf.cast(10 * x, "int32")),
        IMAGES,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_results_are_the_same(name):
    function, values = CALLS[name]
    wanted = function(values)
    signature = [tf.TensorSpec([None, *values.shape[1:]], values.dtype)]
    with functions_of_litert(), functions_of_integers():
        graph = tf.function(function, input_signature=signature).get_concrete_function()
        found = function(values)
    for given in (graph(values), found):
        assert given.dtype == wanted.dtype
        np.testing.assert_allclose(given, wanted, rtol=1e-6, atol=1e-5)


def test_what_is_known_only_when_the_model_runs_is_left_as_it_is():
    @tf.function(input_signature=[tf.TensorSpec((None, 2)), tf.TensorSpec((), tf.int32)])
    def rolled(x, by):
        return tf.roll(x, by, 1)

    with functions_of_litert():
        found = rolled(tf.constant([[1.0, 2.0], [3.0, 4.0]]), 1)
    np.testing.assert_array_equal(found, [[2, 1], [4, 3]])


def test_tensorflow_and_keras_come_back():
    homes = [
        *((tf, name) for name in ("zeros_like", "one_hot", "reverse", "roll")),
        *((tf, name) for name in ("einsum", "reduce_max")),
        (tf.nn, "softmax"),
        *((array_ops, name) for name in ("reverse", "reverse_v2")),
        (tf.linalg, "einsum"),
        (tf.image, "extract_patches"),
    ]
    plain = [getattr(home, name) for home, name in homes]

    def stopped():
        with functions_of_litert(), functions_of_integers():
            assert not [
                name
                for (home, name), own in zip(homes, plain, strict=True)
                if getattr(home, name) is own
            ]
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert all(getattr(home, name) is own for (home, name), own in zip(homes, plain, strict=True))
    # Keras tells minus zero from zero.
    assert int(ops.argmax(np.array([-0.0, 0.0], "float32"))) == 1


@pytest.mark.parametrize(
    ("choice", "taken"),
    [(lambda h: ops.maximum(h, 0.3), "BiasAdd"), (lambda h: h + ops.maximum(h, 0.3), "Mul")],
    ids=["alone", "beside another reader"],
)
def test_a_choice_that_alone_reads_its_values_takes_them_as_they_are(choice, taken):
    """A product more would cost time, and keep the converter from knowing hard swish."""
    x = keras.Input((16,))
    model = keras.Model(x, layers.Dense(10)(choice(layers.Dense(32)(x))))

    @tf.function(input_signature=[tf.TensorSpec((None, 16))])
    def served(rows):
        result = model(rows, training=False)
        keep_choices_apart(tf.compat.v1.get_default_graph(), [result])
        return result

    (operation,) = (
        each
        for each in served.get_concrete_function().graph.get_operations()
        if each.type == "Maximum"
    )
    assert [each.op.type for each in operation.inputs] == [taken, "Const"]
