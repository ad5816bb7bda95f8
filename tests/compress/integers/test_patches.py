"""Patches as tf.image takes them, in LiteRT files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt.compress.integers.convolutions import patches_by_blocks
from tfopt.compress.quantize_aware import quantize_aware

RNG = np.random.default_rng(0)
IMAGES = RNG.random((64, 12, 12, 3)).astype("float32")
TAKEN = {
    "beside": ([1, 4, 4, 1], [1, 4, 4, 1], [1, 1, 1, 1], "VALID"),
    "with_a_rest": ([1, 5, 5, 1], [1, 5, 5, 1], [1, 1, 1, 1], "VALID"),
    "one_over_another": ([1, 4, 4, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"),
    "oblong": ([1, 2, 3, 1], [1, 2, 3, 1], [1, 1, 1, 1], "VALID"),
    "wide_apart": ([1, 3, 3, 1], [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
    "pixels": ([1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID"),
}


class Patches(layers.Layer):
    def __init__(self, taken):
        super().__init__()
        self.taken = taken

    def call(self, images):
        sizes, strides, rates, padding = self.taken
        found = tf.image.extract_patches(
            images=images, sizes=sizes, strides=strides, rates=rates, padding=padding
        )
        return tf.reshape(found, [tf.shape(images)[0], -1, found.shape[-1]])


@pytest.mark.parametrize("name", TAKEN)
def test_the_same_patches(name):
    wanted = tf.image.extract_patches(IMAGES, *TAKEN[name])
    with patches_by_blocks():
        given = tf.image.extract_patches(IMAGES, *TAKEN[name])
    np.testing.assert_allclose(given, wanted, atol=1e-6)


@pytest.mark.parametrize(("name", "aware"), [("beside", True), ("beside", False), ("oblong", True)])
def test_a_model_that_begins_with_patches_is_in_integers(name, aware):
    entry = keras.Input((12, 12, 3))
    words = layers.Dense(8)(Patches(TAKEN[name])(entry))
    model = keras.Model(entry, layers.Dense(3)(layers.GlobalAveragePooling1D()(words)))
    if aware:
        quantize_aware(model)(IMAGES, training=True)
    made = tfopt.quantize(model, representative=IMAGES)
    assert made.fully_integer, made.left_float
    assert made.parity.relative_error < 0.05


def test_integers_are_taken_as_before_and_tensorflow_comes_back():
    plain, numbers = tf.image.extract_patches, tf.reshape(tf.range(16), [1, 4, 4, 1])
    wanted = plain(numbers, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")

    def stopped():
        with patches_by_blocks():
            assert tf.image.extract_patches is not plain
            given = tf.image.extract_patches(
                numbers, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"
            )
            np.testing.assert_array_equal(given, wanted)
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert tf.image.extract_patches is plain
