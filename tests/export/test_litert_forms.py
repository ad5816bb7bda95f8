"""What stands for layers and functions while a model is traced gives what they give."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tfopt.export.litert_forms import litert_forms

RNG = np.random.default_rng(0)
ROWS = tf.constant(RNG.normal(size=(6, 5, 6)).astype("float32"))
IMAGES = tf.constant(RNG.random((4, 12, 12, 3)).astype("float32"))
NUMBERS = tf.constant([[1, 2], [0, 3]])
MATRIX = RNG.random((5, 5)).astype("float32")


def patches(sizes, strides):
    return lambda x: tf.image.extract_patches(x, sizes, strides, [1, 1, 1, 1], "VALID")


# A function, and what it is called on; in eager mode and in a graph with a free batch.
CALLS = {
    "rolled": (lambda x: tf.roll(x, -7, 1), ROWS),
    "rolled_twice": (lambda x: tf.roll(x, [1, 1], [1, 1]), ROWS),
    "rolled_examples": (lambda x: tf.roll(x, 1, 0), ROWS),
    "rolled_numbers": (lambda x: tf.roll(x, 1, 1), NUMBERS),
    "einsum": (lambda x: tf.einsum("ij,bjf->bif", tf.constant(MATRIX), x), ROWS),
    "einsum_of_keras": (lambda x: ops.einsum("ij, bjf -> bif", MATRIX, x), ROWS),
    "einsum_of_two": (lambda x: tf.einsum("bif,bjf->bij", x, x), ROWS),
    "largest": (lambda x: ops.argmax(x, axis=-1), ROWS),
    "largest_kept": (lambda x: ops.argmax(x, axis=1, keepdims=True), ROWS),
    "smallest_of_all_kept": (lambda x: ops.argmin(x, keepdims=True), ROWS),
    "blocks": (patches([1, 4, 4, 1], [1, 4, 4, 1]), IMAGES),
    "blocks_with_a_rest": (patches([1, 5, 5, 1], [1, 5, 5, 1]), IMAGES),
    "selu": (lambda x: tf.nn.selu(10 * x), ROWS),
    "softplus": (lambda x: tf.math.softplus(10 * x), ROWS),
    "overlapping": (patches([1, 4, 4, 1], [1, 2, 2, 1]), IMAGES),
}


def nothing():
    return keras.Sequential([keras.Input((3,)), layers.Dense(2)])


@pytest.mark.parametrize("name", CALLS)
def test_the_results_of_functions_are_the_same(name):
    function, values = CALLS[name]
    wanted = function(values)
    signature = [tf.TensorSpec([None, *values.shape[1:]], values.dtype)]
    with litert_forms(nothing(), integers=True):
        graph = tf.function(function, input_signature=signature).get_concrete_function()
        found = function(values)
    for given in (graph(values), found):
        assert given.dtype == wanted.dtype
        np.testing.assert_allclose(given, wanted, rtol=1e-6, atol=1e-5)


def test_what_is_known_only_when_the_model_runs_is_left_as_it_is():
    @tf.function(input_signature=[tf.TensorSpec((None, 2)), tf.TensorSpec((), tf.int32)])
    def rolled(x, by):
        return tf.roll(x, by, 1)

    with litert_forms(nothing(), integers=False):
        found = rolled(tf.constant([[1.0, 2.0], [3.0, 4.0]]), 1)
    np.testing.assert_array_equal(found, [[2, 1], [4, 3]])


@pytest.mark.parametrize(
    "layer",
    [
        layers.Dense(5, activation="relu", bias_initializer="ones"),
        layers.Flatten(),
        layers.Reshape((3, -1)),
        layers.LayerNormalization(epsilon=1e-6),
        # Keras 3.8 has none.
        *([layers.RMSNormalization()] if hasattr(layers, "RMSNormalization") else ()),
    ],
)
def test_the_results_of_layers_are_the_same(layer):
    wanted = layer(ROWS)
    model = keras.Sequential([keras.Input(ROWS.shape[1:]), layer])
    with litert_forms(model, integers=True):
        assert "call" in vars(layer)
        found = layer(ROWS)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


def test_model_and_libraries_are_as_they_were_also_after_an_error():
    homes = [(tf, "einsum"), (tf, "roll"), (tf.image, "extract_patches")]
    plain = [getattr(home, name) for home, name in homes]
    x = keras.Input((6, 16))
    model = keras.Model(x, layers.LSTM(3, unroll=True)(layers.LayerNormalization()(x)))
    before = [{**vars(layer)} for layer in model.layers]

    def stopped():
        with litert_forms(model, integers=True):
            assert any("call" in vars(layer) for layer in model.layers)
            assert all(
                getattr(home, name) is not own
                for (home, name), own in zip(homes, plain, strict=True)
            )
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert all(getattr(home, name) is own for (home, name), own in zip(homes, plain, strict=True))
    for layer, own in zip(model.layers, before, strict=True):
        assert vars(layer).keys() == own.keys()
        assert all(vars(layer)[name] is value for name, value in own.items())
    # Keras tells minus zero from zero.
    assert int(ops.argmax(np.array([-0.0, 0.0], "float32"))) == 1
