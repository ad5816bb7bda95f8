"""A model trained quantization-aware, as a LiteRT file: all integers, and the same answers."""

import keras
import numpy as np
import pytest
from digits import small_digits
from keras import layers

import tfopt
from tfopt.compress.quantize_aware import quantize_aware
from tfopt.errors import UserError
from tfopt.export.litert_file import LitertPredictor

RNG = np.random.default_rng(0)
IMAGE, ROWS = (6, 6, 4), (5, 8)


def normalized(x):
    return layers.ReLU()(layers.BatchNormalization()(x))


def trained(shape, body, **settings):
    keras.utils.set_random_seed(1)
    x = keras.Input(shape)
    model = keras.Model(x, layers.Dense(3, name="out")(layers.Flatten()(body(x))))
    quantize_aware(model, **settings)
    data = np.random.default_rng(0).normal(size=(128, *shape)).astype("float32")
    # Ranges and statistics are all that the conversion needs of a training.
    for batch in np.split(data, 4):
        model(batch, training=True)
    return model, data


def test_what_has_no_integer_kernel_is_listed_with_its_reason():
    # Rounded after it was computed in float, it is also what the converter takes no reshape of.
    model, data = trained(ROWS, lambda x: layers.Dense(4)(keras.ops.sin(x)))
    made = tfopt.quantize(model, representative=data, samples=16)
    assert not made.fully_integer
    assert {row.kind for row in made.left_float} == {"SIN"}
    assert made.parity.relative_error < 0.05


def test_an_activation_that_is_always_zero_can_be_served():
    dead = keras.initializers.Constant(-100.0)
    model, data = trained(
        IMAGE, lambda x: layers.Conv2D(4, 3, activation="relu", bias_initializer=dead)(x)
    )
    made = tfopt.quantize(model, representative=data, samples=16)
    assert made.fully_integer
    assert made.parity.max_abs_error == 0


def test_a_masked_layer_that_goes_backwards_hides_the_steps_that_it_hides_in_keras():
    keras.utils.set_random_seed(1)
    tokens = RNG.integers(0, 3, (64, 5))
    x = keras.Input((5,), dtype="int32")
    words = layers.Embedding(3, 8, keras.initializers.RandomNormal(stddev=1.0), mask_zero=True)
    both = layers.Bidirectional(layers.LSTM(4, return_sequences=True))
    model = keras.Model(x, layers.Dense(3)(both(words(x))))
    made = tfopt.quantize(model, mode="float16", representative=tokens, samples=64)
    predictor = LitertPredictor(made.content, inputs=made.inputs, outputs=made.outputs)
    np.testing.assert_allclose(predictor([tokens.astype("int32")])[0], model(tokens), atol=2e-3)


def test_a_model_with_a_state_between_calls_is_refused():
    x = keras.Input((3, 2), batch_size=4)
    model = keras.Model(x, layers.LSTM(4, stateful=True, name="keeps")(x))
    with pytest.raises(UserError, match="keeps"):
        tfopt.quantize(model, representative=np.ones((8, 3, 2), "float32"))


def test_a_division_by_what_is_rounded_to_zero_is_told():
    model, data = trained(ROWS, lambda x: 1 / (1e-3 + keras.ops.abs(layers.Dense(6)(x))))
    with pytest.raises(UserError, match="maximum"):
        tfopt.quantize(model, representative=data)


def test_a_model_that_saw_no_batch_is_not_converted():
    x = keras.Input((4,))
    model = quantize_aware(keras.Model(x, layers.Dense(2)(x)))
    with pytest.raises(UserError, match="never trained"):
        tfopt.quantize(model, representative=np.ones((8, 4), "float32"))


def test_a_model_of_another_precision_is_converted_in_float32_with_its_ranges():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model, data = trained(IMAGE, lambda x: normalized(layers.Conv2D(5, 3)(x)))
    finally:
        keras.config.set_dtype_policy("float32")
    made = tfopt.quantize(model, representative=data, samples=64)
    assert made.fully_integer
    assert "another precision" in str(made)
    assert made.parity.relative_error < 0.02


def test_masks_and_the_values_of_int4_are_in_the_file():
    x = keras.Input((16,))
    model = keras.Model(x, layers.Dense(3, name="out")(layers.Dense(64, "relu", name="in")(x)))
    model.compile("adam", "mse", jit_compile=False)
    tfopt.prune(model, 0.75, layers="^in")
    quantize_aware(model, "int4")
    data = RNG.normal(size=(64, 16)).astype("float32")
    model.fit(data, RNG.normal(size=(64, 3)), verbose=0)
    made = tfopt.quantize(model, representative=data)
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
def test_digits_keep_their_accuracy_and_the_file_answers_as_the_model():
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
    quantize_aware(model, freeze_batchnorm_step=60)
    model.compile(keras.optimizers.Adam(3e-4), **settings, jit_compile=False)
    model.fit(x[:1800], y[:1800], epochs=2, verbose=0)
    made = tfopt.quantize(model, representative=x[1800:], samples=600)
    assert made.fully_integer
    assert made.parity.argmax_agreement >= 0.99
    assert made.accuracy(x[1800:], y[1800:]) >= plain - 0.01
