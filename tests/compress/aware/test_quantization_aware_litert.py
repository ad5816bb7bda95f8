"""A model trained quantization-aware, as a LiteRT file: all integers, and the same answers."""

import functools

import keras
import numpy as np
import pytest
from digits import small_digits
from keras import layers
from one_file import OneFile

import tfopt
from tfopt.compress.quantize_aware import quantize_aware
from tfopt.errors import UserError
from tfopt.export.litert_file import LitertPredictor, evaluate_litert

RNG = np.random.default_rng(0)
IMAGE, ROWS, VOLUME = (6, 6, 4), (5, 8), (5, 6, 6, 2)


def normalized(x):
    return layers.ReLU()(layers.BatchNormalization()(x))


def squeezed(x):
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Conv2D(4, 1, activation="sigmoid")(layers.Conv2D(2, 1, activation="swish")(gate))
    return layers.Multiply()([x, gate])


def decoder(x):
    """As in a U-Net: behind what is repeated the converter knew no height."""
    y = layers.MaxPooling2D(2)(layers.Conv2D(4, 3, padding="same")(x))
    z = normalized(layers.Conv2DTranspose(4, 3, padding="same")(layers.Activation("relu")(y)))
    z = layers.UpSampling2D(2)(z)
    return layers.add([z, layers.Conv2D(4, 1)(layers.UpSampling2D(2)(layers.add([y, y])))])


def same_size(x):
    return layers.Conv2D(5, 3, padding="same", activation="relu")(x)


def bordered(x):
    """With a value that nothing before it reaches."""
    around = [[0, 0], [1, 1], [1, 1], [0, 0]]
    return keras.ops.pad(same_size(x), around, constant_values=-7.0)


def narrow_and_wide(x):
    wide = keras.initializers.RandomNormal(stddev=3.0)
    return layers.Dense(4)(x), layers.Dense(4, kernel_initializer=wide)(x)


def joined(*parts):
    return layers.Concatenate()(list(parts))


def joined_flat(x):
    narrow, wide = narrow_and_wide(x)
    return joined(layers.Reshape((40,))(joined(narrow, wide)), layers.Reshape((20,))(narrow))


def joined_twice(x):
    """One of what is joined has a range of its own, since it is used elsewhere too."""
    narrow, wide = narrow_and_wide(x)
    return joined(joined(joined(narrow, wide), layers.Dense(4)(x)), layers.Dense(4)(narrow))


# What stands between the input and a dense layer, and by how many steps of the output's range of
# 256 the file may be off: one where nothing is rounded that training did not round, and more where
# the conversion adds roundings of its own.
CASES = {
    "conv": (IMAGE, lambda x: normalized(layers.Conv2D(5, 3, strides=2)(x)), 2),
    "grouped": (IMAGE, lambda x: layers.Conv2D(6, 3, groups=2, activation="relu")(x), 2),
    "depthwise": (IMAGE, lambda x: normalized(layers.DepthwiseConv2D(3)(x)), 2),
    "separable": (IMAGE, lambda x: normalized(layers.SeparableConv2D(5, 3)(x)), 2),
    "separable1d": (ROWS, lambda x: layers.SeparableConv1D(6, 3, activation="relu")(x), 2),
    "transposed": (IMAGE, lambda x: normalized(layers.Conv2DTranspose(5, 3)(x)), 2),
    "transposed_relu": (IMAGE, lambda x: layers.Conv2DTranspose(5, 3, activation="relu")(x), 2),
    "transposed_then_relu": (IMAGE, lambda x: layers.ReLU()(layers.Conv2DTranspose(5, 3)(x)), 2),
    "decoder": (IMAGE, decoder, 3),
    "conv1d": (ROWS, lambda x: layers.Conv1D(6, 3, padding="causal", activation="relu")(x), 2),
    "conv3d": (VOLUME, lambda x: layers.Conv3D(4, 3, padding="same", activation="relu")(x), 2),
    "conv3d_norm": (VOLUME, lambda x: normalized(layers.Conv3D(4, (2, 3, 1), strides=2)(x)), 3),
    "largest_of_volume": (VOLUME, lambda x: layers.MaxPooling3D(2)(layers.Conv3D(4, 1)(x)), 2),
    # Two poolings of images, each of which rounds means to the steps of what it is given ("pools").
    "mean_of_volume": (VOLUME, lambda x: layers.AveragePooling3D(2)(layers.Conv3D(4, 1)(x)), 2 * 3),
    "upsampled_volume": (VOLUME, lambda x: layers.UpSampling3D(2)(layers.Conv3D(3, 1)(x)), 2),
    "one_channel_norm": (
        ROWS,
        lambda x: layers.Dense(4)(x) + layers.LayerNormalization()(layers.Conv1D(1, 1)(x)),
        2,
    ),
    "reciprocal": (ROWS, lambda x: 1 / (1 + layers.Dense(6, activation="relu")(x)), 4),
    "minus": (ROWS, lambda x: layers.Dense(4)(-keras.ops.square(layers.Dense(6)(x))), 4),
    "dense_norm": (ROWS, lambda x: normalized(layers.Dense(6)(layers.Flatten()(x))), 2),
    "residual": (IMAGE, lambda x: keras.ops.relu(layers.Conv2D(4, 1)(x) + x), 2),
    "concatenate": (IMAGE, lambda x: layers.Concatenate()([layers.Conv2D(4, 1)(x), x]), 3),
    "swish": (IMAGE, lambda x: layers.Conv2D(4, 1, activation="swish")(x), 3),
    "gelu": (IMAGE, lambda x: layers.Activation("gelu")(layers.Conv2D(4, 1)(x)), 3),
    "tanh": (IMAGE, lambda x: layers.Activation("tanh")(layers.Conv2D(4, 1)(x)), 2),
    "elu": (IMAGE, lambda x: layers.Conv2D(4, 1, activation="elu")(x), 4),
    "elu_layer": (IMAGE, lambda x: layers.ELU(0.7)(layers.Conv2D(4, 1)(x)), 4),
    "selu": (IMAGE, lambda x: layers.Activation("selu")(layers.Conv2D(4, 1)(x)), 4),
    "softplus": (IMAGE, lambda x: keras.ops.softplus(layers.Conv2D(4, 1)(x)), 4),
    "mish": (IMAGE, lambda x: layers.Conv2D(4, 1, activation="mish")(x), 4),
    "log_sigmoid": (IMAGE, lambda x: layers.Conv2D(4, 1, activation="log_sigmoid")(x), 4),
    "squareplus": (IMAGE, lambda x: layers.Conv2D(4, 1, activation="squareplus")(x), 4),
    "soft_shrink": (IMAGE, lambda x: keras.ops.soft_shrink(layers.Conv2D(4, 1)(x), 0.2), 4),
    "hard_shrink": (ROWS, lambda x: layers.Activation("hard_shrink")(layers.Dense(16)(x)), 3),
    "sparse_plus": (IMAGE, lambda x: layers.Conv2D(4, 1, activation="sparse_plus")(x), 4),
    "leaky_below_6": (
        IMAGE,
        lambda x: layers.ReLU(max_value=6, negative_slope=0.1)(layers.Conv2D(4, 1)(x)),
        4,
    ),
    "squeeze": (IMAGE, squeezed, 3),
    "pools": (
        IMAGE,
        lambda x: layers.Concatenate()([layers.MaxPooling2D()(x), layers.AveragePooling2D(2)(x)]),
        3,
    ),
    "moved": (IMAGE, lambda x: layers.Reshape((16, 9))(layers.Permute((3, 1, 2))(x)), 2),
    # Means of neighbours reach less far than they do, and LiteRT has one scale for what it resizes
    # and gives; it rounds those means, which training does not.
    "resized": (
        IMAGE,
        lambda x: layers.Conv2D(4, 1)(layers.Resizing(3, 3)(same_size(x))),
        5,
    ),
    "resized_image": (
        IMAGE,
        lambda x: layers.Conv2D(4, 1)(keras.ops.image.resize(same_size(x), (9, 4))),
        5,
    ),
    "border": (IMAGE, bordered, 2),
    "largest_of_wide": (ROWS, lambda x: layers.Maximum()(narrow_and_wide(x)), 2),
    # Rounded again to the range of the second joint.
    "joined_flat": (ROWS, joined_flat, 4),
    "joined_twice": (ROWS, joined_twice, 2),
    "joined_input": (ROWS, lambda x: joined(joined(x, narrow_and_wide(x)[1]), x), 2),
    "rescaled": (IMAGE, lambda x: layers.Rescaling(0.5, 0.1)(x), 2),
    "standardized": (
        IMAGE,
        lambda x: layers.Normalization(mean=[1, 2, 3, 4], variance=[2] * 4)(x),
        1,
    ),
    "norm_first": (IMAGE, lambda x: normalized(layers.MaxPooling2D()(x)), 2),
    "norm_of_rows": (ROWS, lambda x: normalized(layers.GlobalAveragePooling1D()(x)), 2),
    "einsum": (ROWS, lambda x: layers.EinsumDense("abc,cde->abde", (5, 2, 4))(x), 2),
    "layer_norm": (ROWS, lambda x: layers.LayerNormalization()(layers.Dense(8)(x)), 4),
    "group_norm": (IMAGE, lambda x: layers.GroupNormalization(2)(x), 4),
    "attention": (ROWS, lambda x: layers.MultiHeadAttention(2, 4)(x, x), 4),
    "lstm": (ROWS, lambda x: layers.LSTM(4)(x), 8),
    "gru": (ROWS, lambda x: layers.GRU(4, return_sequences=True)(x), 8),
    "conv_lstm": (
        (3, 6, 6, 1),
        lambda x: layers.Conv3D(1, 1)(
            layers.ConvLSTM2D(2, 3, return_sequences=True, activation="relu")(x)
        ),
        8,
    ),
}


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


@functools.cache
def file_of(shape):
    """Return one file for all cases of a shape of examples."""
    data = np.random.default_rng(0).normal(size=(128, *shape)).astype("float32")
    return OneFile(
        {name: ending(body) for name, (own, body, _) in CASES.items() if own == shape},
        data,
        aware=True,
    )


def ending(body):
    return lambda x: layers.Dense(3)(layers.Flatten()(body(x)))


@pytest.mark.parametrize("name", sorted(CASES, key=lambda name: str(CASES[name][0])))
def test_the_file_computes_in_integers_what_the_model_trained(name):
    file = file_of(CASES[name][0])
    assert file.made.fully_integer, file.made.left_float
    assert file.steps_off(name) <= CASES[name][2] + 0.01
    # Random outputs lie close together; on a task it is 99 %, below.
    assert file.parity(name).argmax_agreement > 0.9


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


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_a_recurrent_layer_with_a_mask_becomes_integers(layer, aware):
    keras.utils.set_random_seed(1)
    tokens = RNG.integers(0, 9, (64, 4))
    x = keras.Input((4,), dtype="int32")
    words = layers.Embedding(9, 8, keras.initializers.RandomNormal(stddev=1.0), mask_zero=True)
    y = layer(6)(words(x))
    model = keras.Model(x, layers.Dense(3, name="out")(y))
    if aware:
        quantize_aware(model)(tokens, training=True)
    expected = model(tokens)
    made = tfopt.quantize(model, representative=tokens, samples=64)
    assert made.fully_integer, made.left_float
    assert made.parity.relative_error < 0.05
    # What the conversion computes otherwise is the model's own again.
    np.testing.assert_array_equal(model(tokens), expected)


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


def test_what_has_no_integer_kernel_is_joined():
    model, data = trained(ROWS, lambda x: joined(keras.ops.sin(x), keras.ops.cos(x)))
    made = tfopt.quantize(model, representative=data)
    assert {"SIN", "COS"} <= {each.kind for each in made.left_float}


def test_a_division_by_what_is_rounded_to_zero_is_told():
    model, data = trained(ROWS, lambda x: 1 / (1e-3 + keras.ops.abs(layers.Dense(6)(x))))
    with pytest.raises(UserError, match="maximum"):
        tfopt.quantize(model, representative=data)


def test_a_model_that_saw_no_batch_is_not_converted():
    x = keras.Input((4,))
    model = quantize_aware(keras.Model(x, layers.Dense(2)(x)))
    with pytest.raises(UserError, match="never trained"):
        tfopt.quantize(model, representative=np.ones((8, 4), "float32"))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_a_model_of_another_precision_is_converted_in_float32_with_its_ranges(policy):
    keras.config.set_dtype_policy(policy)
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
    assert evaluate_litert(made.content, x[1800:], y[1800:]) >= plain - 0.01
