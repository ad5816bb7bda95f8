"""What stands for Keras's layers and functions in a file gives what they give, in float."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfopt.compress.integers.activations import activation_form, activation_layer_form
from tfopt.compress.integers.convolutions import (
    convolved,
    has_two_parts,
    in_two_parts,
    is_volume_convolution,
)
from tfopt.compress.integers.fake_quant import DEAD_RANGE, servable
from tfopt.compress.integers.forms import flat_outputs_form, integer_form
from tfopt.compress.integers.served_forms import served_forms, static_form

RNG = np.random.default_rng(0)
LINE = np.linspace(-40, 40, 2001).astype("float32")
ROWS = tf.constant(RNG.normal(size=(4, 8, 6)).astype("float32"))
VOLUME = tf.constant(RNG.normal(size=(2, 7, 9, 8, 3)).astype("float32"))


@pytest.mark.parametrize("name", ["selu", "celu", "softplus", "log_sigmoid", "mish"])
def test_a_function_is_the_same(name):
    function = keras.activations.get(name)
    np.testing.assert_allclose(activation_form(function)(LINE), function(LINE), 1e-5, 1e-6)


def test_an_operation_is_the_same_with_its_settings():
    part = keras.ops.celu(keras.Input((1,)), 1.5)._keras_history.operation
    np.testing.assert_allclose(activation_layer_form(part)(LINE), part(LINE), 1e-5, 1e-6)


def test_what_is_not_keras_own_is_left_alone():
    def selu(x):
        return x

    assert activation_form(selu) is None
    assert activation_form(keras.activations.relu) is None
    assert activation_layer_form(layers.ReLU()) is None


@pytest.mark.parametrize(
    "layer",
    [
        layers.LayerNormalization(epsilon=1e-6),
        layers.RMSNormalization(),
        layers.UnitNormalization(),
        layers.GroupNormalization(2),
        *(
            layers.EinsumDense(
                "btd,dhk->bthk",
                (None, 2, 3),
                activation=activation,
                bias_axes=bias,
                bias_initializer="normal",
            )
            for bias, activation in (("hk", None), ("k", "relu"), ("h", "softmax"))
        ),
    ],
)
def test_a_form_is_the_same(layer):
    wanted = layer(ROWS)
    np.testing.assert_allclose(integer_form(layer)(ROWS), wanted, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("equation", "shape", "bias"),
    [("btd,dhk->bhtk", (2, 8, 3), "hk"), ("btd,dk->btk", (8, 3), "k")],
)
def test_one_axis_of_outputs_or_one_in_front_is_left_to_keras(equation, shape, bias):
    layer = layers.EinsumDense(equation, shape, bias_axes=bias)
    layer(ROWS)
    assert flat_outputs_form(layer) is None


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.SeparableConv2D(5, 3, 2, "same", activation="relu"), (8, 9, 4)),
        (layers.SeparableConv2D(5, (2, 3), dilation_rate=2, use_bias=False), (8, 9, 4)),
        (layers.SeparableConv2D(5, 3, depth_multiplier=2, bias_initializer="ones"), (8, 9, 4)),
        (layers.SeparableConv1D(5, 3, 2, bias_initializer="ones"), (9, 4)),
    ],
)
def test_a_separable_convolution_in_two_parts(layer, shape):
    x = keras.ops.convert_to_tensor(RNG.normal(size=(2, *shape)).astype("float32"))
    wanted = layer(x)
    assert has_two_parts(layer)
    np.testing.assert_allclose(in_two_parts(layer, lambda y: y, x), wanted, atol=1e-6)
    assert not np.allclose(in_two_parts(layer, lambda y: 2 * y, x), wanted, atol=1e-3)


def test_only_keras_own_separable_convolution_has_two_parts():
    class Own(layers.SeparableConv2D):
        def call(self, inputs):
            return super().call(inputs)

    assert not has_two_parts(Own(4, 3))
    assert not has_two_parts(layers.DepthwiseConv2D(3))


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
def test_a_volume_is_convolved_as_images(size, strides, dilation, padding):
    settings = {"dilation_rate": dilation, "activation": "relu", "bias_initializer": "ones"}
    layer = layers.Conv3D(5, size, strides, padding, **settings)
    wanted = layer(VOLUME)
    assert is_volume_convolution(layer)
    np.testing.assert_allclose(convolved(layer, VOLUME), wanted, atol=1e-5)


@pytest.mark.parametrize("kind", [layers.MaxPooling3D, layers.AveragePooling3D])
@pytest.mark.parametrize(
    "how", [(2,), (3, 1), ((2, 3, 1), (1, 2, 2), "same"), ((3, 2, 2), (2, 2, 1), "same")]
)
def test_a_volume_is_pooled_as_images(kind, how):
    layer = kind(*how)
    np.testing.assert_allclose(static_form(layer)(VOLUME), layer(VOLUME), atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (layers.UpSampling1D(3), VOLUME[:, :, 0, 0]),
        (layers.UpSampling2D((2, 3)), VOLUME[:, :, :, 0]),
        (layers.UpSampling3D((2, 3, 4)), VOLUME),
    ],
)
def test_pixels_are_repeated(layer, x):
    np.testing.assert_array_equal(static_form(layer)(x), layer(x))


def test_groups_and_interpolation_are_left_to_keras():
    assert not is_volume_convolution(layers.Conv3D(4, 3, groups=2))
    assert static_form(layers.UpSampling2D(2, interpolation="bilinear")) is None


def test_the_model_is_as_it_was_also_after_an_error():
    x = keras.Input((6, 16))
    model = keras.Model(x, layers.Dense(16, activation="selu")(layers.LayerNormalization()(x)))
    before = [{**vars(layer)} for layer in model.layers]

    def stopped():
        with served_forms(model, integers=True):
            assert any("call" in vars(layer) for layer in model.layers)
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    for layer, own in zip(model.layers, before, strict=True):
        assert vars(layer).keys() == own.keys()
        assert all(vars(layer)[name] is value for name, value in own.items())


def test_a_served_range_has_a_step_that_float32_holds_and_is_hardly_another():
    for low, high in RNG.uniform(0, [3, 5], (200, 2)) * [-1, 1]:
        served = servable(low, high)
        step = np.float32(served[1] - served[0]) / np.float32(255)
        assert all(float(np.float32(end)) == end for end in served)
        assert float(step) == (served[1] - served[0]) / 255
        assert served[0] <= 0 <= served[1]
        # Zero is a value of the range, and the ends move by half a step for that.
        assert np.allclose(served, (low, high), rtol=0, atol=0.51 * step)
        assert served[1] - served[0] == pytest.approx(high - low, rel=2**-14)
    assert servable(0.0, 0.0) == pytest.approx(DEAD_RANGE, rel=2**-14)
    assert servable(0.0, 255 / 256) == (0.0, 255 / 256)
    assert servable(-1.0, 127 / 128) == (-1.0, 127 / 128)
