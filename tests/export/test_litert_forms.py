"""What stands for layers and functions while a model is traced gives what they give."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tfopt.export.litert_forms import litert_forms


def nothing():
    return keras.Sequential([keras.Input((3,)), layers.Dense(2)])


def test_what_is_known_only_when_the_model_runs_is_left_as_it_is():
    @tf.function(input_signature=[tf.TensorSpec((None, 2)), tf.TensorSpec((), tf.int32)])
    def rolled(x, by):
        return tf.roll(x, by, 1)

    with litert_forms(nothing(), integers=False):
        found = rolled(tf.constant([[1.0, 2.0], [3.0, 4.0]]), 1)
    np.testing.assert_array_equal(found, [[2, 1], [4, 3]])


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
