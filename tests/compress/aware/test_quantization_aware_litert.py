"""A model trained quantization-aware and stripped, as a LiteRT file."""

import keras
import numpy as np
import pytest
from int8_kernels import int8_kernels
from keras import layers

import tfopt
from tfopt.errors import UserError

RNG = np.random.default_rng(0)


def normalized(x):
    return layers.ReLU()(layers.BatchNormalization()(x))


def test_a_model_that_is_still_aware_is_refused_with_the_way_out():
    x = keras.Input((4,))
    model = tfopt.quantize_aware(keras.Model(x, layers.Dense(2)(x)))
    with pytest.raises(UserError, match=r"tfopt\.strip\(model\) first"):
        tfopt.quantize(model, calibration=np.ones((8, 4), "float32"))


def test_a_model_of_another_precision_is_converted_in_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        x = keras.Input((6, 6, 4))
        hidden = layers.Flatten()(normalized(layers.Conv2D(5, 3)(x)))
        model = tfopt.quantize_aware(keras.Model(x, layers.Dense(3)(hidden)))
    finally:
        keras.config.set_dtype_policy("float32")
    data = RNG.normal(size=(64, 6, 6, 4)).astype("float32")
    model(data, training=True)
    made = tfopt.quantize(tfopt.strip(model), calibration=data)
    assert made.fully_integer
    assert "another precision" in str(made)
    assert made.parity.relative_error < 0.02


def test_masks_and_the_values_of_int4_are_in_the_file():
    x = keras.Input((16,))
    model = keras.Model(x, layers.Dense(3, name="out")(layers.Dense(64, "relu", name="in")(x)))
    model.compile("adam", "mse", jit_compile=False)
    tfopt.prune(model, 0.75, layers="^in")
    tfopt.quantize_aware(model, "int4")
    data = RNG.normal(size=(64, 16)).astype("float32")
    model.fit(data, RNG.normal(size=(64, 3)), verbose=0)
    made = tfopt.quantize(tfopt.strip(model), calibration=data)
    stored = int8_kernels(made.content, (1024,))[1024].reshape(64, 16)
    assert np.mean(stored == 0) >= 0.75
    assert max(len(np.unique(row)) for row in stored) <= 15
