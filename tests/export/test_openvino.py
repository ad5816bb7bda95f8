"""Keras models in OpenVINO's files: what its frontend takes, and what it names otherwise."""

import keras
import pytest
import tensorflow as tf
from keras import layers

import tfopt


class Diagonal(layers.Layer):
    def call(self, x):
        return tf.linalg.diag_part(tf.linalg.diag(x))


def test_patches_of_a_vision_transformer_go_in_and_an_unknown_operator_is_named(tmp_path):
    image = keras.Input((8, 8, 3))
    patches = layers.Flatten()(keras.ops.image.extract_patches(image, (4, 4)))
    model = keras.Model(image, layers.Dense(3)(patches))
    file = tfopt.export(model, tmp_path, formats="openvino").files[0]
    assert file.parity.relative_error < 1e-5
    unknown = keras.Model(image, Diagonal()(patches))
    with pytest.raises(tfopt.UserError, match="MatrixDiagV3"):
        tfopt.export(unknown, tmp_path, formats="openvino")
