"""Models as files of integers that answer as the models do, trained for it or not.

The branches of one model share a file: what stands between its input and a last layer is a body.
"""

from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from one_file import OneFile

import tfopt
from tfopt.compress.integers import (
    activations,
    forms,
    functions,
    normalization,
    plan,
    served_forms,
)
from tfopt.export import litert as conversion

MATRIX = np.random.default_rng(0).random((5, 5), "float32")


def normal(*shape):
    return np.random.default_rng(0).normal(size=(128, *shape)).astype("float32")


def normalized(x):
    return layers.ReLU()(layers.BatchNormalization()(x))


def squeezed(x):
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Conv2D(4, 1, activation="sigmoid")(layers.Conv2D(2, 1, activation="swish")(gate))
    return layers.Multiply()([x, gate])


def decoder(x):
    """As in a U-Net: after what is repeated the converter knew no height."""
    y = layers.MaxPooling2D(2)(layers.Conv2D(4, 3, padding="same")(x))
    z = normalized(layers.Conv2DTranspose(4, 3, padding="same")(layers.Activation("relu")(y)))
    z = layers.UpSampling2D(2)(z)
    return layers.add([z, layers.Conv2D(4, 1)(layers.UpSampling2D(2)(layers.add([y, y])))])


def same_size(x):
    return layers.Conv2D(5, 3, padding="same", activation="relu")(x)


def narrow_and_wide(x):
    wide = keras.initializers.RandomNormal(stddev=3.0)
    return layers.Dense(4)(x), layers.Dense(4, kernel_initializer=wide)(x)


def joined(*parts):
    return layers.Concatenate()(list(parts))


def joined_flat(x):
    """Rounded again to the range of the second joint."""
    narrow, wide = narrow_and_wide(x)
    return joined(layers.Reshape((40,))(joined(narrow, wide)), layers.Reshape((20,))(narrow))


def joined_twice(x):
    """One of what is joined has a range of its own, since it is used elsewhere too."""
    narrow, wide = narrow_and_wide(x)
    return joined(joined(joined(narrow, wide), layers.Dense(4)(x)), layers.Dense(4)(narrow))


def quotient(x):
    """What is a step below zero is divided too, of which LiteRT gives the lowest value of all."""
    return layers.Dense(8)(x) / (1 + layers.Dense(8, activation="relu")(x))


def attended(x, layer=None, **call):
    return (layer or layers.MultiHeadAttention(2, 4))(x, x, **call)


@keras.saving.register_keras_serializable("test_integer_files")
class Doubled(layers.LayerNormalization):
    def call(self, inputs):
        return 2 * super().call(inputs)


@keras.saving.register_keras_serializable("test_integer_files")
class OwnChoice(layers.Layer):
    def call(self, h):
        return tf.where(h > 0.0, h, -0.5 * h)


class Own(layers.Layer):
    """A ``call`` of a user's own."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


def own(function):
    return lambda x: Own(function)(layers.Dense(8)(x))


ROWS = {
    "separable": lambda x: layers.SeparableConv1D(6, 3, activation="relu")(x),
    "conv": lambda x: layers.Conv1D(6, 3, padding="causal", activation="relu")(x),
    "reciprocal": lambda x: 1 / (1 + layers.Dense(6, activation="relu")(x)),
    "quotient": quotient,
    "dense_norm": lambda x: normalized(layers.Dense(6)(layers.Flatten()(x))),
    "celu": lambda x: layers.Dense(16, activation="celu")(x),
    "largest_of_wide": lambda x: layers.Maximum()(narrow_and_wide(x)),
    "joined_flat": joined_flat,
    "joined_twice": joined_twice,
    "joined_input": lambda x: joined(joined(x, narrow_and_wide(x)[1]), x),
    "norm_of_rows": lambda x: normalized(layers.GlobalAveragePooling1D()(x)),
    "einsum": lambda x: layers.EinsumDense("abc,cde->abde", (5, 2, 4))(x),
    "einsum_bias": lambda x: layers.EinsumDense(
        "abc,cde->abde", (5, 2, 4), bias_axes="e", activation="relu", bias_initializer="normal"
    )(x),
    "layer_norm": lambda x: layers.LayerNormalization()(layers.Dense(8)(x)),
    "rms_norm": lambda x: layers.RMSNormalization()(layers.Dense(8)(x)),
    "own_norm": lambda x: Doubled()(layers.Dense(8)(x)),
    "attention": attended,
    "causal": lambda x: attended(x, use_causal_mask=True),
    "dropout": lambda x: attended(
        x, layers.MultiHeadAttention(2, 4, dropout=0.1), use_causal_mask=True
    ),
    "scores": lambda x: attended(x, return_attention_scores=True)[0],
    "grouped": lambda x: attended(x, layers.GroupQueryAttention(6, 4, 2), use_causal_mask=True),
    "lstm": lambda x: layers.LSTM(4)(x),
    "gru": lambda x: layers.GRU(4, return_sequences=True)(x),
}
IMAGE = {
    "conv": lambda x: normalized(layers.Conv2D(5, 3, strides=2)(x)),
    "grouped": lambda x: layers.Conv2D(6, 3, groups=2, activation="relu")(x),
    "depthwise": lambda x: normalized(layers.DepthwiseConv2D(3)(x)),
    "separable": lambda x: normalized(layers.SeparableConv2D(5, 3)(x)),
    "transposed": lambda x: normalized(layers.Conv2DTranspose(5, 3)(x)),
    "transposed_relu": lambda x: layers.Conv2DTranspose(5, 3, activation="relu")(x),
    "transposed_then_relu": lambda x: layers.ReLU()(layers.Conv2DTranspose(5, 3)(x)),
    "decoder": decoder,
    "residual": lambda x: ops.relu(layers.Conv2D(4, 1)(x) + x),
    "concatenate": lambda x: layers.Concatenate()([layers.Conv2D(4, 1)(x), x]),
    "swish": lambda x: layers.Conv2D(4, 1, activation="swish")(x),
    "gelu": lambda x: layers.Activation("gelu")(layers.Conv2D(4, 1)(x)),
    "tanh": lambda x: layers.Activation("tanh")(layers.Conv2D(4, 1)(x)),
    "selu": lambda x: layers.Activation("selu")(layers.Conv2D(4, 1)(x)),
    "softplus": lambda x: ops.softplus(layers.Conv2D(4, 1)(x)),
    "mish": lambda x: layers.Conv2D(4, 1, activation="mish")(x),
    "log_sigmoid": lambda x: layers.Conv2D(4, 1, activation="log_sigmoid")(x),
    "leaky": lambda x: layers.LeakyReLU(0.1)(layers.Conv2D(4, 1)(x)),
    "squeeze": squeezed,
    "pools": lambda x: joined(layers.MaxPooling2D()(x), layers.AveragePooling2D(2)(x)),
    "moved": lambda x: layers.Reshape((16, 9))(layers.Permute((3, 1, 2))(x)),
    # Means of neighbours reach less far than they do, and LiteRT has one scale for what it resizes
    # and gives; it rounds those means, which training does not.
    "resized": lambda x: layers.Conv2D(4, 1)(layers.Resizing(3, 3)(same_size(x))),
    "resized_image": lambda x: layers.Conv2D(4, 1)(ops.image.resize(same_size(x), (9, 4))),
    "rescaled": lambda x: layers.Rescaling(0.5, 0.1)(x),
    "standardized": lambda x: layers.Normalization(mean=[1, 2, 3, 4], variance=[2] * 4)(x),
    "norm_first": lambda x: normalized(layers.MaxPooling2D()(x)),
    "group_norm": lambda x: layers.GroupNormalization(2)(x),
}
VOLUME = {
    "conv": lambda x: layers.Conv3D(4, 3, padding="same", activation="relu")(x),
    "conv_norm": lambda x: normalized(layers.Conv3D(4, (2, 3, 1), strides=2)(x)),
    "largest": lambda x: layers.MaxPooling3D(2)(layers.Conv3D(4, 1)(x)),
    "mean": lambda x: layers.AveragePooling3D(2)(layers.Conv3D(4, 1)(x)),
    "upsampled": lambda x: layers.UpSampling3D(2)(layers.Conv3D(3, 1)(x)),
}
FRAMES = {
    "conv_lstm": lambda x: layers.Conv3D(1, 1)(
        layers.ConvLSTM2D(2, 3, return_sequences=True, activation="relu")(x)
    ),
}
OWN = {
    "zeros_like": own(lambda x: tf.where(x > 0, x, tf.zeros_like(x))),
    "keras_zeros_like": own(lambda x: ops.where(x > 0, x, ops.zeros_like(x))),
    "joined_zeros": own(lambda x: tf.concat([x, tf.zeros_like(x[:, :1])], 1)),
    "gelu": own(lambda x: tf.nn.gelu(x)),
    "keras_gelu": own(lambda x: ops.gelu(x, approximate=False)),
    "neighbours": own(lambda x: tf.einsum("ij,bjf->bif", tf.constant(MATRIX), x)),
    "of_two": own(lambda x: tf.einsum("bif,bjf->bij", x, x)),
}


def beside_a_wider_one(turn):
    """What is turned round meets values of another range."""

    def body(x):
        wide = keras.initializers.RandomNormal(stddev=1.0)
        turned = turn(layers.Conv2D(8, 3, padding="same")(x))
        return joined(turned, layers.Conv2D(4, 3, padding="same", kernel_initializer=wide)(x))

    return body


def patches(size):
    def taken(x):
        found = tf.image.extract_patches(x, size, size, [1, 1, 1, 1], "VALID")
        return tf.reshape(found, [tf.shape(x)[0], -1, found.shape[-1]])

    return lambda x: layers.GlobalAveragePooling1D()(layers.Dense(8)(Own(taken)(x)))


PIXELS = {
    "columns": beside_a_wider_one(lambda x: ops.flip(x, 1)),
    "rolled_on_two_axes": beside_a_wider_one(lambda x: ops.roll(x, (-2, 11), (1, 2))),
    "flipped_image": beside_a_wider_one(Own(lambda x: tf.image.flip_left_right(x))),
    "patches": patches([1, 4, 4, 1]),
    "oblong_patches": patches([1, 2, 3, 1]),
}
CHOSEN = {
    "largest": lambda h: ops.argmax(h, axis=-1),
    "smallest": lambda h: ops.argmin(h, axis=-1, keepdims=True),
    "of_a_vector": lambda h: ops.argmax(ops.max(h, axis=(1, 2)), axis=1),
    "one_hot": lambda h: ops.one_hot(ops.argmax(h, axis=-1), 5),
    "own_one_hot": Own(lambda h: tf.one_hot(tf.argmax(h, -1), 5)),
}
CHOICES = {
    "larger_of_two_signs": lambda h: ops.maximum(h, -1.0 * h),
    "smaller_of_what_adds_up": lambda h: ops.minimum(h, 1 - h),
    "beside_their_mean": lambda h: ops.maximum(h, ops.mean(h, -1, keepdims=True)),
    "cut_off_and_added": lambda h: h + 10 * ops.clip(h, -0.05, 0.05),
    "below_zero": lambda h: h + 2 * ops.minimum(h, 0.0),
    "in_another_shape": lambda h: (
        h + 10 * ops.reshape(ops.clip(ops.reshape(h, (-1, 4, 8)), -0.05, 0.05), (-1, 32))
    ),
    "less_a_sum_of_exponentials": lambda h: h - ops.logsumexp(h - 4, axis=-1, keepdims=True),
    "own": OwnChoice(),
}


def ending(body):
    def ended(x):
        found = body(x)
        return layers.Dense(3)(found if len(found.shape) == 2 else layers.Flatten()(found))

    return ended


def texts():
    """Numbers of words, of different length, with zeros after them."""
    lengths = np.random.default_rng(0).integers(1, 13, 128)
    words = np.random.default_rng(1).integers(1, 30, (128, 12))
    return np.where(np.arange(12) < lengths[:, None], words, 0).astype("int32")


def words(layer, mask=True):
    spread = keras.initializers.RandomNormal(stddev=1.0)
    return lambda x: layer(layers.Embedding(30, 8, spread, mask_zero=mask)(x))


def average_by_hand(x):
    there = ops.cast(ops.expand_dims(ops.not_equal(x, 0), -1), "float32")
    found = words(lambda y: y, mask=False)(x)
    return ops.sum(found * there, 1) / ops.sum(there, 1)


TEXT = {
    "average": words(lambda y: layers.GlobalAveragePooling1D()(y)),
    "average_of_attention": words(
        lambda y: layers.GlobalAveragePooling1D(keepdims=True)(attended(y))
    ),
    "attention": words(attended),
    "causal_attention": words(lambda y: attended(y, use_causal_mask=True)),
    "one_head": words(lambda y: layers.Attention()([y, y])),
    "additive": words(lambda y: layers.AdditiveAttention()([y, y])),
    "lstm": words(lambda y: layers.LSTM(6)(y)),
    "gru": words(lambda y: layers.GRU(6)(y)),
    "simple_rnn": words(lambda y: layers.SimpleRNN(6)(y)),
    "both_ways": words(lambda y: layers.Bidirectional(layers.LSTM(6, return_sequences=True))(y)),
    "both_ways_gru": words(lambda y: layers.Bidirectional(layers.GRU(6, return_sequences=True))(y)),
    "both_ways_without_mask": words(
        lambda y: layers.Bidirectional(layers.LSTM(6, return_sequences=True))(y), mask=False
    ),
}


def padded():
    """Rows of numbers, with rows of zeros after them."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(128, 8, 6))
    there = np.arange(8) < generator.integers(2, 9, 128)[:, None]
    return (rows * there[..., None]).astype("float32")


PADDED = {
    "layer": lambda x: layers.LayerNormalization(epsilon=1e-6)(x),
    "rms": lambda x: layers.RMSNormalization()(x),
    "unit": lambda x: layers.UnitNormalization()(x),
}
BY_HAND = {"average": average_by_hand}
# What a plain model gives in ranges of its own: without what joins its input with something wider.
PLAIN = {
    name: body
    for name, body in ROWS.items()
    if not name.startswith("joined") and name not in ("lstm", "gru")
}
# By the name of a file: examples, bodies, and the most that the norm of the outputs may be off.
FILES = {
    "rows": (normal(5, 8), ROWS, 0.05),
    "image": (normal(6, 6, 4), IMAGE, 0.05),
    "volume": (normal(5, 6, 6, 2), VOLUME, 0.05),
    "frames": (normal(3, 6, 6, 1), FRAMES, 0.05),
    "own": (normal(5, 6), OWN, 0.08),
    "pixels": (normal(8, 8, 3), PIXELS, 0.05),
    "text": (texts(), TEXT, 0.05),
    "by_hand": (texts(), BY_HAND, 0.05),
    "padded": (padded(), PADDED, 0.12),
    "plain": (normal(5, 8), PLAIN, 0.05),
}
# Here the file rounds where training did, so that only the arithmetic of a CPU is between them.
ROUNDED_ALIKE = ("rows", "image", "volume", "frames", "pixels")
# Operators that LiteRT has in floats alone, and that are none the worse for it.
LEFT_FLOAT = {"rows": {"NEG"}, "plain": {"NEG"}, "by_hand": {"CAST"}, "text": {"CAST"}}
MADE = [
    *((name, True) for name in FILES if name not in ("plain", "text", "own")),
    *((name, False) for name in ("plain", "pixels", "by_hand", "padded")),
    *(
        pytest.param(name, aware, marks=pytest.mark.slow)
        for name, aware in (("own", False), ("own", True), ("text", False), ("text", True))
    ),
]


@pytest.mark.filterwarnings("ignore:Layer 'flatten.*mask attached:UserWarning")
@pytest.mark.parametrize(("kind", "aware"), MADE)
def test_the_file_answers_as_the_model_does(kind, aware):
    examples, bodies, most = FILES[kind]
    file = OneFile({each: ending(body) for each, body in bodies.items()}, examples, aware=aware)
    assert {each.kind for each in file.made.left_float} <= LEFT_FLOAT.get(kind, set())
    parity = {name: file.parity(name) for name in bodies}
    errors = {name: each.relative_error for name, each in parity.items()}
    assert {name: error for name, error in errors.items() if error >= most} == {}
    if aware and kind in ROUNDED_ALIKE:
        shares = {name: file.share_of_roundings(name) for name in bodies}
        assert {name: share for name, share in shares.items() if share < 0.95} == {}
        # Nothing is cut off.
        steps = {name: file.steps_off(name) for name in bodies}
        assert {name: off for name, off in steps.items() if off >= 25} == {}
        # Random outputs lie close together; on a task it is 99 %.
        agreements = {name: each.argmax_agreement for name, each in parity.items()}
        assert {name: share for name, share in agreements.items() if share <= 0.9} == {}


@pytest.mark.parametrize("aware", [False, True])
def test_places_are_found_in_integers(aware):
    def body(choose):
        return lambda x: choose(layers.Conv2D(5, 3, padding="same")(x))

    file = OneFile(
        {name: body(choose) for name, choose in CHOSEN.items()}, normal(8, 8, 3), aware=aware
    )
    assert file.made.fully_integer
    for name, wanted in file.wanted.items():
        # Values that round alike are a tie, of which the first wins.
        assert np.mean(np.abs(file.got[name] - wanted) < 0.01) > 0.94, name
        assert len(np.unique(file.got[name])) == len(np.unique(wanted)), name


@pytest.mark.parametrize("aware", [False, True])
def test_what_others_read_keeps_its_range_beside_a_choice(aware, monkeypatch):
    def body(choice):
        return lambda x: layers.Dense(10)(choice(layers.Dense(32)(x)))

    file = OneFile(
        {name: body(choice) for name, choice in CHOICES.items()}, normal(16), aware=aware
    )
    assert file.made.fully_integer
    assert file.made.notes == ()
    errors = {name: file.parity(name).relative_error for name in CHOICES}
    assert max(errors.values()) < 0.03, errors
    if not aware:
        monkeypatch.setattr(conversion, "keep_choices_apart", lambda graph, results: None)
        file.got = file.answers(file.quantize())
        for name, error in errors.items():
            assert file.parity(name).relative_error > 5 * error, name


def test_what_the_model_gives_is_a_reader_too():
    def body(x):
        h = layers.Dense(8)(x)
        return {"wide": h, "cut": layers.Dense(4)(ops.clip(h, -0.3, 0.3))}

    file = OneFile({"both": body}, normal(16))
    assert np.abs(file.got["wide"]).max() > 1.0
    assert file.parity("wide").relative_error < 0.05


def test_axes_that_change_places_before_they_are_flattened_are_converted():
    """The range's step was refused where two ways to work it out differed in the last bit."""

    def body(x):
        flat = layers.Flatten()(ops.swapaxes(layers.Conv2D(8, 3, padding="same")(x), 1, 2))
        wide = keras.initializers.RandomNormal(stddev=1.0)
        beside = layers.Conv2D(4, 3, padding="same", kernel_initializer=wide)(x)
        both = joined(flat, layers.Flatten()(beside))
        return {"alone": layers.Dense(5)(flat), "both": layers.Dense(4)(both)}

    assert OneFile({"turned": body}, normal(8, 8, 3), aware=True, batches=1).made.fully_integer


TABLE = np.concatenate(
    [
        np.random.default_rng(0).uniform(-1, 1, (256, 3)),
        np.random.default_rng(1).integers(0, 50, (256, 1)),
    ],
    axis=1,
).astype("float32")


def embedded(column):
    spread = keras.initializers.RandomUniform(-1, 1)
    return layers.Flatten()(layers.Embedding(50, 8, embeddings_initializer=spread)(column))


def in_a_nested_model(x):
    values, column = keras.Input((3,)), keras.Input((1,))
    inner = keras.Model([values, column], joined(values, embedded(column)))
    return layers.Dense(1)(inner([x[:, :3], x[:, 3:]]))


def in_a_nested_sequential(x):
    column = keras.Input((1,))
    encoder = keras.Sequential([column, *keras.Model(column, embedded(column)).layers[1:]])
    return layers.Dense(1)(joined(x[:, :3], encoder(x[:, 3:])))


LOOKED_UP = {
    "embedded": lambda x: layers.Dense(1)(joined(x[:, :3], embedded(x[:, 3:]))),
    "one_hot": lambda x: layers.Dense(1)(
        joined(x[:, :3], layers.Flatten()(ops.one_hot(ops.cast(x[:, 3:], "int32"), 50)))
    ),
    "nested": in_a_nested_model,
    "sequential": in_a_nested_sequential,
}


def lost_in_training(file, name):
    return np.linalg.norm(file.wanted[name] - file.before[name]) / np.linalg.norm(file.before[name])


def test_a_model_trains_on_the_categories_that_it_was_given(monkeypatch):
    file = OneFile(LOOKED_UP, TABLE, aware=True)
    remark = tfopt.compress.quantization_report(file.model)[0].remark
    assert "categories" in remark
    for name in LOOKED_UP:
        assert lost_in_training(file, name) < 0.15, name
        assert file.parity(name).relative_error < 0.03, name
    monkeypatch.setattr(plan, "inputs_of_categories", lambda model: frozenset())
    rounded = OneFile(LOOKED_UP, TABLE, aware=True)
    assert min(lost_in_training(rounded, name) for name in LOOKED_UP) > 0.5


def encoded(x):
    return layers.Dense(1)(layers.CategoryEncoding(50, output_mode="one_hot")(x))


@pytest.mark.parametrize(
    ("bodies", "examples"),
    [
        ({"encoded": encoded}, TABLE[:, 3:].astype("int32")),
        ({name: LOOKED_UP[name] for name in ("embedded", "one_hot")}, TABLE),
    ],
    ids=["integers", "floats"],
)
def test_categories_are_the_same_ones_in_the_file(bodies, examples, monkeypatch):
    file = OneFile(bodies, examples)
    assert all(file.parity(name).relative_error < 0.03 for name in bodies)
    monkeypatch.setattr(conversion, "keep_indices_whole", lambda graph: None)
    file.got = file.answers(file.quantize())
    assert all(file.parity(name).relative_error > 0.06 for name in bodies)


@pytest.mark.parametrize("mode", ["int8", "float16"])
def test_a_dense_layer_on_integers_is_served_as_keras_computes_it(mode):
    model = keras.Sequential([keras.Input((6,), dtype="int32"), layers.Dense(8), layers.Dense(1)])
    x = np.random.default_rng(0).integers(0, 9, (64, 6)).astype("int32")
    assert tfopt.quantize(model, mode=mode, representative=x).parity.relative_error < 0.03


def test_known_shapes_are_not_computed():
    x = keras.Input((6, 16))
    hidden = layers.Reshape((12, 8))(layers.Dense(16)(x))
    model = keras.Model(x, layers.Dense(3)(layers.Flatten()(hidden)))
    made = tfopt.quantize(model, mode="dynamic")
    assert not {"SHAPE", "PACK", "GATHER", "REDUCE_PROD"} & set(made.ops)


def test_an_unknown_length_is_still_served():
    x = keras.Input((None, 4))
    model = keras.Model(x, layers.GlobalAveragePooling1D()(layers.Dense(3)(x)))
    data = normal(5, 4)
    made = tfopt.quantize(model, mode="float16", representative=data)
    np.testing.assert_allclose(made.predict(data)[0], model.predict(data, verbose=0), atol=1e-2)


def as_it_is(plain):
    """A function that stays TensorFlow's own."""
    return plain


def turned(x):
    wide = keras.initializers.RandomNormal(stddev=1.0)
    narrow = ops.flip(layers.Conv2D(8, 3, padding="same")(x), 1)
    return joined(narrow, layers.Conv2D(4, 3, padding="same", kernel_initializer=wide)(x))


def none(*given):
    """Return None: there is no form."""


def without(home, *names):
    """Return a replacement: the forms of a module without some."""
    return home, "_FORMS", {name: form for name, form in home._FORMS.items() if name not in names}


def hidden(x):
    scores = ops.matmul(layers.Dense(8)(x), ops.transpose(x, (0, 2, 1)))
    return layers.Softmax()(scores, mask=np.tril(np.ones((1, 5, 5), bool)))


def chosen(x):
    return CHOSEN["one_hot"](layers.Conv2D(5, 3)(x))


def grouped(x):
    return layers.GroupNormalization(2)(layers.Rescaling(1.0, 10.0)(x))


def one_head(x):
    spread = keras.initializers.RandomNormal(stddev=1.0)
    words = layers.Embedding(30, 8, spread, mask_zero=True)(x)
    return layers.GlobalAveragePooling1D()(layers.Attention()([words, words]))


def cut_off(x):
    return CHOICES["cut_off_and_added"](layers.Dense(32)(layers.Flatten()(x)))


IMAGES, SQUARES, FIVE, VOLUMES = normal(6, 6, 4), normal(8, 8, 3), normal(5, 8), normal(5, 6, 6, 2)
# By the name of a rewrite: what it is replaced by, examples, a body that needs it.
REWRITES = {
    "reverse": ((functions, "_reverse", as_it_is), SQUARES, turned),
    "roll": ((functions, "_roll", as_it_is), SQUARES, PIXELS["rolled_on_two_axes"]),
    "patches": ((functions, "_extract_patches", as_it_is), SQUARES, PIXELS["patches"]),
    "einsum": ((functions, "_einsum", as_it_is), normal(5, 6), OWN["neighbours"]),
    "one_hot": ((functions, "_one_hot", as_it_is), SQUARES, chosen),
    "softmax": ((functions, "softmax_of_near_scores", as_it_is), FIVE, hidden),
    "one_head": ((served_forms, "attention_methods", lambda *given: {}), texts(), one_head),
    "choices": ((conversion, "keep_choices_apart", none), FIVE, cut_off),
    "selu": (without(activations, "selu"), IMAGES, IMAGE["selu"]),
    "celu": (without(activations, "celu"), FIVE, ROWS["celu"]),
    "softplus": (without(activations, "softplus"), IMAGES, IMAGE["softplus"]),
    "log_sigmoid": (without(activations, "log_sigmoid"), IMAGES, IMAGE["log_sigmoid"]),
    "layer": (without(normalization, "LayerNormalization"), padded(), PADDED["layer"]),
    "rms": (without(normalization, "RMSNormalization"), padded(), PADDED["rms"]),
    "unit": (without(normalization, "UnitNormalization"), padded(), PADDED["unit"]),
    "pool": ((served_forms, "_STATIC_FORMS", {}), VOLUMES, VOLUME["largest"]),
    "unrolled": ((conversion, "unrolled_soundly", nullcontext), texts(), TEXT["both_ways"]),
}
# The same, where a model is trained for integers.
AWARE_REWRITES = {
    "mish": (without(activations, "mish"), IMAGES, IMAGE["mish"]),
    "group": (without(normalization, "GroupNormalization"), IMAGES, grouped),
    "zeros_like": ((functions, "_zeros_like", as_it_is), normal(5, 6), OWN["zeros_like"]),
    "volume": ((forms, "is_volume_convolution", none), VOLUMES, VOLUME["conv"]),
    "quotient": ((forms, "_quotient", lambda call, *parts: call(*parts)), FIVE, quotient),
    "flat": ((forms, "flat_outputs_form", none), FIVE, ROWS["einsum_bias"]),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer 'flatten.*mask attached:UserWarning")
@pytest.mark.parametrize("name", [*REWRITES, *AWARE_REWRITES])
def test_a_rewrite_stays_while_files_without_it_are_worse(name, monkeypatch):
    aware = name in AWARE_REWRITES
    replacement, examples, body = (REWRITES | AWARE_REWRITES)[name]
    error = OneFile({name: ending(body)}, examples, aware=aware).parity(name).relative_error
    monkeypatch.setattr(*replacement)
    try:
        worse = OneFile({name: ending(body)}, examples, aware=aware).parity(name)
    except tfopt.UserError:
        return
    assert worse.relative_error > 2 * error
