"""Convolutions and windows of volumes, computed as those of images; pixels that are repeated."""

import keras
import numpy as np
import pytest

from tfopt.compress.integers.convolutions import convolved, is_volume_convolution
from tfopt.compress.integers.tracing import static_form

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


@pytest.mark.parametrize("kind", [keras.layers.MaxPooling3D, keras.layers.AveragePooling3D])
@pytest.mark.parametrize(
    "how", [(2,), (3, 1), ((2, 3, 1), (1, 2, 2), "same"), ((3, 2, 2), (2, 2, 1), "same")]
)
def test_a_window_has_the_same_value(kind, how):
    layer = kind(*how)
    found = static_form(layer)(keras.ops.convert_to_tensor(X))
    np.testing.assert_allclose(found, layer(X), atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (keras.layers.UpSampling1D(3), X[:, :, 0, 0]),
        (keras.layers.UpSampling2D((2, 3)), X[:, :, :, 0]),
        (keras.layers.UpSampling3D((2, 3, 4)), X),
    ],
)
def test_what_is_repeated_is_the_same(layer, x):
    found = static_form(layer)(keras.ops.convert_to_tensor(x))
    np.testing.assert_array_equal(found, layer(x))


def test_what_is_interpolated_is_left_to_keras():
    assert static_form(keras.layers.UpSampling2D(2, interpolation="bilinear")) is None
