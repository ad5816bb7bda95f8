"""Parts of models that need more than the converter: their int8 LiteRT files answer as they do.

The branches of one model share a file: what stands between its input and a last layer is a body.
Whole nets of usual layers are in the goldens of compression.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from one_file import OneFile

import tfopt

CAUSAL = np.tril(np.ones((1, 5, 5), bool))
MATRIX = np.random.default_rng(0).random((5, 5), "float32")


def normal(*shape):
    return np.random.default_rng(0).normal(size=(128, *shape)).astype("float32")


def only(layer, **bodies):
    """Return the bodies where Keras has the layer: 3.8 has no RMSNormalization."""
    return bodies if hasattr(layers, layer) else {}


def normalized(x):
    return layers.ReLU()(layers.BatchNormalization()(x))


def squeezed(x):
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Conv2D(4, 1, activation="sigmoid")(layers.Conv2D(2, 1, activation="swish")(gate))
    return layers.Multiply()([x, gate])


def decoder(x):
    y = layers.MaxPooling2D(2)(layers.Conv2D(4, 3, padding="same")(x))
    z = normalized(layers.Conv2DTranspose(4, 3, padding="same")(layers.Activation("relu")(y)))
    z = layers.UpSampling2D(2)(z)
    return layers.add([z, layers.Conv2D(4, 1)(layers.UpSampling2D(2)(layers.add([y, y])))])


def joined(*parts):
    return layers.Concatenate()(list(parts))


def narrow_and_wide(x):
    wide = keras.initializers.RandomNormal(stddev=3.0)
    return layers.Dense(4)(x), layers.Dense(4, kernel_initializer=wide)(x)


def quotient(x):
    """What is a step below zero is divided too, of which LiteRT gives the lowest value of all."""
    return layers.Dense(8)(x) / (1 + layers.Dense(8, activation="relu")(x))


def attended(x, layer=None, **call):
    return (layer or layers.MultiHeadAttention(2, 4))(x, x, **call)


class Own(layers.Layer):
    """A ``call`` of a user's own."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


def own(function):
    return lambda x: Own(function)(layers.Dense(8)(x))


def masked(x):
    """Attention of a user's own, whose mask Keras's Softmax takes."""
    query, key, value = (layers.Dense(8)(x) for _ in range(3))
    scores = ops.matmul(query, ops.transpose(key, (0, 2, 1))) / 8**0.5
    return ops.matmul(layers.Softmax()(scores, mask=CAUSAL), value)


ROWS = {
    "separable": lambda x: layers.SeparableConv1D(6, 3, activation="relu")(x),
    "reciprocal": lambda x: 1 / (1 + layers.Dense(6, activation="relu")(x)),
    "quotient": quotient,
    "largest_of_wide": lambda x: layers.Maximum()(narrow_and_wide(x)),
    "joined": lambda x: joined(joined(x, narrow_and_wide(x)[1]), x),
    "einsum": lambda x: layers.EinsumDense(
        "abc,cde->abde", (5, 2, 4), bias_axes="e", activation="relu", bias_initializer="normal"
    )(x),
    "layer_norm": lambda x: layers.LayerNormalization()(layers.Dense(8)(x)),
    **only("RMSNormalization", rms_norm=lambda x: layers.RMSNormalization()(layers.Dense(8)(x))),
    "attention": attended,
    "causal": lambda x: attended(
        x, layers.MultiHeadAttention(2, 4, dropout=0.1), use_causal_mask=True
    ),
    "grouped": lambda x: attended(x, layers.GroupQueryAttention(6, 4, 2), use_causal_mask=True),
    "masked_softmax": masked,
    "neighbours": own(lambda x: tf.einsum("ij,bjf->bif", tf.constant(MATRIX), x)),
    "neighbours_by_keras": own(lambda x: ops.einsum("ij, bjf -> bif", MATRIX, x)),
    "of_two": own(lambda x: tf.einsum("bif,bjf->bij", x, x)),
    "zeros": own(lambda x: tf.where(x > 0, x, tf.zeros_like(x))),
    "exact_gelu": own(lambda x: ops.gelu(x, approximate=False)),
}
CHOICES = {
    "larger_of_two_signs": lambda h: ops.maximum(h, -1.0 * h),
    "cut_off_and_added": lambda h: h + 10 * ops.clip(h, -0.05, 0.05),
    "less_a_sum_of_exponentials": lambda h: h - ops.logsumexp(h - 4, axis=-1, keepdims=True),
}
IMAGE = {
    "grouped": lambda x: layers.Conv2D(6, 3, groups=2, activation="relu")(x),
    "separable": lambda x: normalized(layers.SeparableConv2D(5, 3)(x)),
    "decoder": decoder,
    "squeeze": squeezed,
    "pools": lambda x: joined(layers.MaxPooling2D()(x), layers.AveragePooling2D(2)(x)),
    "moved": lambda x: layers.Reshape((16, 9))(layers.Permute((3, 1, 2))(x)),
    "resized": lambda x: layers.Conv2D(4, 1)(layers.Resizing(3, 3)(x)),
    "standardized": lambda x: layers.Normalization(mean=[1, 2, 3, 4], variance=[2] * 4)(x),
    "group_norm": lambda x: layers.GroupNormalization(2)(x),
    **{
        name: lambda x, name=name: layers.Conv2D(4, 1, activation=name)(x)
        for name in ("swish", "gelu", "tanh", "elu", "selu", "softplus", "mish")
    },
    "leaky": lambda x: layers.LeakyReLU(0.1)(layers.Conv2D(4, 1)(x)),
}


def beside_a_wider_one(turn):
    """What is turned round meets values of another range."""

    def body(x):
        wide = keras.initializers.RandomNormal(stddev=1.0)
        turned = turn(layers.Conv2D(8, 3, padding="same")(x))
        return joined(turned, layers.Conv2D(4, 3, padding="same", kernel_initializer=wide)(x))

    return body


def patches(size, strides=None):
    def taken(x):
        found = tf.image.extract_patches(x, size, strides or size, [1, 1, 1, 1], "VALID")
        return tf.reshape(found, [tf.shape(x)[0], -1, found.shape[-1]])

    return lambda x: layers.GlobalAveragePooling1D()(layers.Dense(8)(Own(taken)(x)))


PIXELS = {
    "flipped": beside_a_wider_one(lambda x: ops.flip(x, 1)),
    "rolled_on_two_axes": beside_a_wider_one(lambda x: ops.roll(x, (-2, 11), (1, 2))),
    "patches": patches([1, 4, 4, 1]),
    "overlapping_patches": patches([1, 4, 4, 1], [1, 2, 2, 1]),
}
VOLUME = {
    "largest": lambda x: layers.MaxPooling3D(2)(layers.Conv3D(4, 1)(x)),
    "mean": lambda x: layers.AveragePooling3D(2, padding="same")(layers.Conv3D(4, 1)(x)),
}
CHOSEN = {
    "largest": lambda h: ops.argmax(h, axis=-1),
    "smallest": lambda h: ops.argmin(h, axis=-1, keepdims=True),
    "of_a_vector": lambda h: ops.argmax(ops.max(h, axis=(1, 2)), axis=1),
    "one_hot": lambda h: ops.one_hot(ops.argmax(h, axis=-1), 5),
}


def ending(body):
    def ended(x):
        found = body(x)
        return layers.Dense(3)(found if len(found.shape) == 2 else layers.Flatten()(found))

    return ended


def texts():
    """Numbers of words, of different length, with zeros after them."""
    lengths = np.random.default_rng(0).integers(1, 7, 128)
    words = np.random.default_rng(1).integers(1, 30, (128, 6))
    return np.where(np.arange(6) < lengths[:, None], words, 0).astype("int32")


def words(layer, mask=True):
    spread = keras.initializers.RandomNormal(stddev=1.0)
    return lambda x: layer(layers.Embedding(30, 8, spread, mask_zero=mask)(x))


TEXT = {
    "average": words(lambda y: layers.GlobalAveragePooling1D()(y)),
    "average_of_attention": words(
        lambda y: layers.GlobalAveragePooling1D(keepdims=True)(attended(y))
    ),
    "simple_rnn": words(lambda y: layers.SimpleRNN(6)(y)),
    "both_ways": words(lambda y: layers.Bidirectional(layers.LSTM(6, return_sequences=True))(y)),
    "both_ways_gru": words(
        lambda y: layers.Bidirectional(layers.GRU(6, return_sequences=True))(y), mask=False
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
    **only("RMSNormalization", rms=lambda x: layers.RMSNormalization()(x)),
}
# By the name of a file: examples, bodies, and the most that the norm of the outputs may be off.
FILES = {
    "rows": (normal(5, 8), ROWS | {name: own(each) for name, each in CHOICES.items()}, 0.05),
    "image": (normal(6, 6, 4), IMAGE, 0.05),
    "pixels": (normal(8, 8, 3), PIXELS, 0.05),
    "volume": (normal(5, 6, 6, 2), VOLUME, 0.05),
    "text": (texts(), TEXT, 0.05),
    "padded": (padded(), PADDED, 0.12),
}


@pytest.mark.filterwarnings("ignore:Layer 'flatten.*mask attached:UserWarning")
@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=[pytest.mark.slow] * (each == "text")) for each in FILES]
)
def test_the_file_answers_as_the_model_does(kind):
    examples, bodies, most = FILES[kind]
    file = OneFile({each: ending(body) for each, body in bodies.items()}, examples)
    assert {name: error for name, error in file.errors(bodies).items() if error >= most} == {}


def test_places_are_found():
    def body(choose):
        return lambda x: choose(layers.Conv2D(5, 3, padding="same")(x))

    file = OneFile({name: body(choose) for name, choose in CHOSEN.items()}, normal(8, 8, 3))
    for name, wanted in file.wanted.items():
        # Values that round alike are a tie, of which the first wins.
        assert np.mean(np.abs(file.got[name] - wanted) < 0.01) > 0.94, name
        assert len(np.unique(file.got[name])) == len(np.unique(wanted)), name


def test_categories_in_whole_numbers_are_the_same_ones_in_the_file():
    def encoded(x):
        return layers.Dense(1)(layers.CategoryEncoding(50, output_mode="one_hot")(x))

    file = OneFile({"encoded": encoded}, np.arange(128).reshape(128, 1).astype("int32") % 50)
    assert file.errors({"encoded": encoded})["encoded"] < 0.08


def test_a_dense_layer_on_integers_is_served_as_keras_computes_it():
    model = keras.Sequential([keras.Input((6,), dtype="int32"), layers.Dense(8), layers.Dense(1)])
    x = np.random.default_rng(0).integers(0, 9, (64, 6)).astype("int32")
    made = tfopt.quantize(model, calibration=x)
    assert made.parity.relative_error < 0.03
