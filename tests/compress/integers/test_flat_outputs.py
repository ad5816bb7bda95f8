"""An EinsumDense with several axes of outputs and a bias becomes integers, trained so or not."""

import keras
import numpy as np
import pytest
from keras import layers

import tfopt
from tfopt.compress.integers.forms import flat_outputs_form

RNG = np.random.default_rng(0)
X = RNG.normal(size=(128, 8, 6)).astype("float32")


def projected(equation="btd,dhk->bthk", bias="hk", activation=None, shape=(8, 2, 3)):
    inputs = keras.Input((8, 6))
    layer = layers.EinsumDense(
        equation, shape, bias_axes=bias, activation=activation, bias_initializer="normal"
    )
    result = layers.Dense(4)(layers.Flatten()(layer(inputs)))
    return keras.Model(inputs, result), layer


@pytest.mark.parametrize("bias", ["hk", "k", "h"])
@pytest.mark.parametrize("activation", [None, "relu", "softmax"])
def test_it_gives_what_the_layer_gives(bias, activation):
    _, layer = projected(bias=bias, activation=activation)
    form = flat_outputs_form(layer)
    np.testing.assert_allclose(form(X), layer(X), atol=1e-6)


def test_sizes_may_be_open_and_outputs_at_the_front():
    layer = layers.EinsumDense("btd,dhk->bthk", (None, 2, 3), bias_axes="hk")
    layer.build((None, None, 6))
    np.testing.assert_allclose(flat_outputs_form(layer)(X), layer(X), atol=1e-6)
    _, turned = projected("btd,dhk->bhtk", shape=(2, 8, 3))
    assert flat_outputs_form(turned) is None
    _, plain = projected("btd,dk->btk", bias="k", shape=(8, 3))
    assert flat_outputs_form(plain) is None


@pytest.mark.parametrize(("bias", "activation"), [("hk", None), ("k", "relu"), ("hk", "gelu")])
def test_a_quantization_aware_one_becomes_a_file_of_integers(bias, activation):
    keras.utils.set_random_seed(0)
    model, _ = projected(bias=bias, activation=activation)
    model.compile("adam", "mse", jit_compile=False)
    tfopt.quantize_aware(model)
    model.fit(X, RNG.normal(size=(128, 4)), verbose=0)
    made = tfopt.quantize(model, representative=X, tolerance=None)
    assert made.fully_integer
    assert made.parity.relative_error < 0.02
