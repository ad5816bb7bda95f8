"""What stands for Keras's activations in a file gives what they give, over their whole range."""

import keras
import numpy as np
import pytest

from tfopt.compress.integers.forms import activation_form, activation_layer_form

X = np.linspace(-40, 40, 2001).astype("float32")
NAMES = ("elu", "selu", "celu", "softplus", "log_sigmoid", "mish", "squareplus", "soft_shrink")
PARTS = (
    keras.layers.ELU(0.7),
    keras.layers.ReLU(negative_slope=0.2),
    keras.layers.ReLU(max_value=6, negative_slope=0.2),
)


@pytest.mark.parametrize("name", [*NAMES, "sparse_plus"])
def test_a_function_is_the_same(name):
    function = keras.activations.get(name)
    found, wanted = activation_form(function)(X), function(X)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: str(part.get_config()))
def test_a_layer_is_the_same_with_its_settings(part):
    np.testing.assert_allclose(activation_layer_form(part)(X), part(X), rtol=1e-5, atol=1e-6)


def test_an_operation_is_the_same_with_its_settings():
    y = keras.ops.soft_shrink(keras.Input((1,)), 1.5)
    form = activation_layer_form(y._keras_history.operation)
    np.testing.assert_allclose(form(X), keras.ops.soft_shrink(X, 1.5), rtol=1e-5, atol=1e-6)


def test_what_is_not_keras_own_is_left_alone():
    def elu(x):
        return x

    assert activation_form(elu) is None
    assert activation_form(keras.activations.relu) is None
    assert activation_layer_form(keras.layers.ReLU()) is None
