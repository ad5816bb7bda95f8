"""A separable convolution in its two parts is the layer."""

import keras
import numpy as np
import pytest

from tfopt.compress.integers.convolutions import has_two_parts, in_two_parts

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (keras.layers.SeparableConv2D(5, 3, 2, "same", activation="relu"), (8, 9, 4)),
        (keras.layers.SeparableConv2D(5, (2, 3), dilation_rate=2, use_bias=False), (8, 9, 4)),
        (
            keras.layers.SeparableConv2D(5, 3, depth_multiplier=2, bias_initializer="ones"),
            (8, 9, 4),
        ),
        (keras.layers.SeparableConv1D(5, 3, 2, bias_initializer="ones"), (9, 4)),
    ],
)
def test_nothing_between_changes_nothing(layer, shape):
    x = keras.ops.convert_to_tensor(RNG.normal(size=(2, *shape)).astype("float32"))
    wanted = layer(x)
    assert has_two_parts(layer)
    np.testing.assert_allclose(in_two_parts(layer, lambda y: y, x), wanted, atol=1e-6)
    assert not np.allclose(in_two_parts(layer, lambda y: 2 * y, x), wanted, atol=1e-3)


def test_a_call_of_ones_own_is_left_alone():
    class Own(keras.layers.SeparableConv2D):
        def call(self, inputs):
            return super().call(inputs)

    assert not has_two_parts(Own(4, 3))
    assert not has_two_parts(keras.layers.DepthwiseConv2D(3))
