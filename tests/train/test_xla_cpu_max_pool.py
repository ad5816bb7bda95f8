"""The max-pool mend: the defect without it, bit-equal results with it, nothing outside it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import Data, Execution, Job
from tfopt.run import prepared
from tfopt.train.xla_cpu_max_pool import tiled_max_pool

RNG = np.random.default_rng(0)


def pooled_with_gradient(layer, image, jit):
    @tf.function(jit_compile=jit)
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
            # A different weight on each output tells where its gradient went.
            weights = np.arange(1, np.prod(y.shape) + 1, dtype="float32").reshape(y.shape)
            total = tf.reduce_sum(y * weights)
        return y, tape.gradient(total, x)

    y, gradient = both(tf.constant(image))
    return y.numpy(), gradient.numpy()


def compiled_program():
    layer = keras.layers.MaxPooling2D(2)

    @tf.function(jit_compile=True)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, x)

    return gradient.experimental_get_compiler_ir(tf.zeros((2, 4, 4, 3)))(stage="hlo")


def test_the_defect_is_there_and_the_mend_removes_it():
    assert "select-and-scatter" in compiled_program()
    with tiled_max_pool():
        assert "select-and-scatter" not in compiled_program()
    assert "select-and-scatter" in compiled_program()


def test_it_ends_with_an_exception():
    before = keras.layers.MaxPooling2D.call
    with pytest.raises(RuntimeError), tiled_max_pool():
        raise RuntimeError
    assert keras.layers.MaxPooling2D.call is before


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (keras.layers.MaxPooling2D(2), "max pooling in a form that XLA runs fast"),
        (keras.layers.MaxPooling2D(3, strides=2), "jit_compile=True"),
        (keras.layers.AveragePooling2D(2), "jit_compile=True"),
    ],
)
def test_a_note_says_so_where_a_model_pools_so(layer, told):
    job = Job(
        build=lambda: keras.Sequential([keras.Input((8, 8, 1)), layer, keras.layers.Flatten()]),
        data=lambda: Data(train=(np.zeros((4, 8, 8, 1)), np.zeros((4, 1)))),
        compile=lambda: {"loss": "mse"},
    )
    with prepared(job, Execution(jit_compile=True)) as ready:
        ((_, effect),) = ready.run.effects
    assert effect.note.startswith(told)


@pytest.mark.parametrize(
    ("shape", "pool"),
    [((3, 8, 8, 4), 2), ((3, 9, 7, 2), (2, 2)), ((2, 9, 6, 5), (3, 2)), ((2, 7, 7, 1), 3)],
)
@pytest.mark.parametrize("jit", [False, True])
def test_outputs_and_gradients_are_bit_equal_ties_included(shape, pool, jit):
    # Few distinct values make ties in almost every window.
    image = RNG.integers(0, 3, size=shape).astype("float32")
    layer = keras.layers.MaxPooling2D(pool)
    # TensorFlow's own kernel says which of equal values takes the gradient.
    expected, expected_gradient = pooled_with_gradient(layer, image, jit=False)
    with tiled_max_pool():
        got, gradient = pooled_with_gradient(layer, image, jit)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(gradient, expected_gradient)
    assert np.count_nonzero(gradient) == got.size


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.MaxPooling2D(3, strides=2),
        keras.layers.MaxPooling2D(2, padding="same"),
        keras.layers.MaxPooling2D(2, strides=1),
    ],
)
def test_other_poolings_are_left_to_keras(layer):
    image = RNG.normal(size=(2, 7, 7, 3)).astype("float32")
    expected = layer(image).numpy()
    open_model = keras.Sequential([keras.Input((None, None, 3)), keras.layers.MaxPooling2D(2)])
    with tiled_max_pool():
        np.testing.assert_array_equal(layer(image).numpy(), expected)
        assert open_model(image).shape == (2, 3, 3, 3)
