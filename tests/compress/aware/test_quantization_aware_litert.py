"""A model trained quantization-aware and stripped, as a LiteRT file."""

import keras
import numpy as np
import pytest
from digits import small_digits
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
    (stored,) = (t for t in constants(made.content) if t.shape == (64, 16))
    assert np.mean(stored == 0) >= 0.75
    assert max(len(np.unique(row)) for row in stored) <= 15


def constants(content):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    for detail in interpreter.get_tensor_details():
        if detail["dtype"] == np.int8 and len(detail["shape"]) == 2:
            try:
                yield interpreter.get_tensor(detail["index"])
            except ValueError:
                continue


@pytest.mark.slow
def test_digits_keep_their_accuracy_and_the_file_answers_as_the_trained_model():
    x, y = small_digits(2400)
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 1))
    z = normalized(layers.Conv2D(16, 3, padding="same")(image))
    z = z + normalized(layers.DepthwiseConv2D(3, padding="same")(z))
    z = normalized(layers.Conv2D(24, 3, strides=2)(z))
    model = keras.Model(image, layers.Dense(10, "softmax")(layers.Flatten()(z)))
    settings = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}
    model.compile("adam", **settings, jit_compile=False)
    model.fit(x[:1800], y[:1800], epochs=6, verbose=0)
    plain = model.evaluate(x[1800:], y[1800:], verbose=0)[1]
    tfopt.quantize_aware(model, freeze_batchnorm_step=60)
    model.compile(keras.optimizers.Adam(3e-4), **settings, jit_compile=False)
    model.fit(x[:1800], y[:1800], epochs=2, verbose=0)
    trained = model.predict(x[1800:], verbose=0).argmax(-1)
    made = tfopt.quantize(tfopt.strip(model), calibration=x[:1800])
    assert made.fully_integer
    assert np.mean(made.predict(x[1800:])[0].argmax(-1) == trained) >= 0.98
    assert made.accuracy(x[1800:], y[1800:]) >= plain - 0.01
