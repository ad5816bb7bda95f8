"""Convolutions of volumes, computed as those of images."""

import keras
import numpy as np
import pytest

from tfopt.compression.volumes import convolved, is_volume_convolution

X = np.random.default_rng(0).normal(size=(2, 7, 9, 8, 3)).astype("float32")


@pytest.mark.parametrize(
    ("size", "strides", "dilation", "padding"),
    [
        (3, 1, 1, "valid"),
        (3, 2, 1, "same"),
        ((2, 3, 1), 1, 1, "same"),
        (2, 1, 2, "same"),
        ((3, 2, 2), (2, 1, 3), 1, "valid"),
        (3, 1, 2, "valid"),
    ],
)
def test_the_result_is_the_same(size, strides, dilation, padding):
    layer = keras.layers.Conv3D(
        5,
        size,
        strides,
        padding,
        dilation_rate=dilation,
        activation="relu",
        bias_initializer="ones",
    )
    wanted = layer(X)
    assert is_volume_convolution(layer)
    found = convolved(layer, keras.ops.convert_to_tensor(X))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_groups_are_left_to_keras():
    assert not is_volume_convolution(keras.layers.Conv3D(4, 3, groups=2))
