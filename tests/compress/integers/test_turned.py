"""Values that are turned round, and ranges whose steps are worked out twice, in integer files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfopt
from tfopt.compress.integers.fake_quant import DEAD_RANGE, servable
from tfopt.compress.integers.own_code import turned_by_slices
from tfopt.compress.quantize_aware import quantize_aware
from tfopt.export.litert_file import LitertPredictor

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(64, 8, 8, 3)).astype("float32")
TURNS = {
    "columns": lambda x: ops.flip(x, 1),
    "channels": lambda x: ops.flip(x, -1),
    "two axes": lambda x: ops.flip(x, (1, 2)),
    "rolled": lambda x: ops.roll(x, 3, 1),
    "rolled on two axes": lambda x: ops.roll(x, (-2, 11), (1, 2)),
    "rolled flat": lambda x: ops.reshape(ops.roll(ops.reshape(x, (-1, 512)), 5, 1), (-1, 8, 8, 8)),
    "rolled by TensorFlow": layers.Lambda(
        lambda x: tf.roll(x, [1, 2], [1, 1]), output_shape=lambda shape: shape
    ),
    "image": layers.Lambda(tf.image.flip_left_right, output_shape=lambda shape: shape),
}


def beside_a_wider_one(turn):
    """What is turned meets values of another range."""
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3))
    wide = keras.initializers.RandomNormal(stddev=1.0)
    turned = turn(layers.Conv2D(8, 3, padding="same")(x))
    beside = layers.Conv2D(4, 3, padding="same", kernel_initializer=wide)(x)
    return keras.Model(x, layers.Dense(4)(layers.Concatenate()([turned, beside])))


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_what_is_turned_round_is_right_in_integers(turn, aware):
    model = beside_a_wider_one(turn)
    if aware:
        quantize_aware(model)(IMAGES, training=True)
    made = tfopt.quantize(model, representative=IMAGES, samples=64)
    assert made.fully_integer
    assert "REVERSE_V2" not in made.ops
    assert made.parity.relative_error < 0.05


@pytest.mark.filterwarnings("ignore:Statistics for quantized inputs")
def test_the_defect_behind_it_is_still_there():
    """LiteRT's own REVERSE, as the converter gives it: garbage."""
    model = beside_a_wider_one(TURNS["columns"])
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[None]] for image in IMAGES)
    found = LitertPredictor(converter.convert())([IMAGES])[0]
    wanted = model(IMAGES).numpy()
    assert np.abs(found - wanted).mean() > 0.5 * np.abs(wanted).mean()


@pytest.mark.parametrize("recurrent", [layers.LSTM, layers.GRU])
@pytest.mark.parametrize("masked", [True, False])
def test_sequences_read_from_both_ends_keep_their_range(recurrent, masked):
    keras.utils.set_random_seed(1)
    tokens = RNG.integers(0, 9, (256, 6))
    x = keras.Input((6,), dtype="int32")
    spread = keras.initializers.RandomNormal(stddev=1.0)
    words = layers.Embedding(9, 8, spread, mask_zero=masked)(x)
    both = layers.Bidirectional(recurrent(6, return_sequences=True))(words)
    model = keras.Model(x, layers.Dense(3)(both))
    quantize_aware(model)(tokens, training=True)
    made = tfopt.quantize(model, representative=tokens, samples=256)
    assert made.fully_integer
    assert made.parity.relative_error < 0.05


def test_tensorflow_turns_as_before_afterwards_and_equally_meanwhile():
    plain, values = tf.reverse, RNG.normal(size=(2, 3, 4)).astype("float32")
    with turned_by_slices():
        assert tf.reverse is not plain
        for axes in ([1], [0, -1], []):
            expected = np.flip(values, axes)
            np.testing.assert_array_equal(tf.reverse(values, axes), expected)
        np.testing.assert_array_equal(tf.reverse([[1, 2]], [1]), [[2, 1]])
        deep = np.ones((1, 1, 1, 1, 1, 2), "float32") * [1, 2]
        np.testing.assert_array_equal(tf.reverse(deep, [5]), deep[..., ::-1])
    assert tf.reverse is plain


def test_what_is_rolled_is_what_tensorflow_rolls():
    values = tf.constant(RNG.normal(size=(2, 3, 4)).astype("float32"))
    cases = [(1, 0), (-1, -1), (7, 1), ([1, -2], [0, 2]), ([1, 1], [1, 1]), (0, 1)]
    expected = [tf.roll(values, *case) for case in cases]
    plain = tf.roll
    with turned_by_slices():
        assert tf.roll is not plain
        for case, wanted in zip(cases, expected, strict=True):
            np.testing.assert_array_equal(tf.roll(values, *case), wanted)
        np.testing.assert_array_equal(tf.roll(tf.range(3), 1, 0), [2, 0, 1])
        np.testing.assert_array_equal(tf.roll(tf.zeros((0, 2)), 1, 0), tf.zeros((0, 2)))

        @tf.function(input_signature=[tf.TensorSpec((None, 2)), tf.TensorSpec((), tf.int32)])
        def while_it_runs(x, by):
            return tf.roll(x, 1, 0), tf.roll(x, by, 1)

        ways = while_it_runs(tf.constant([[1.0, 2.0], [3.0, 4.0]]), 1)
    np.testing.assert_array_equal(ways[0], [[3, 4], [1, 2]])
    np.testing.assert_array_equal(ways[1], [[2, 1], [4, 3]])
    assert tf.roll is plain


def test_tensorflow_turns_as_before_also_after_an_error():
    from tensorflow.python.ops import array_ops

    plain = tf.reverse, array_ops.reverse, array_ops.reverse_v2

    def stopped():
        with turned_by_slices():
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert (tf.reverse, array_ops.reverse, array_ops.reverse_v2) == plain


def test_axes_that_change_places_before_they_are_flattened_are_converted():
    """The range's step was refused where two ways to work it out differed in the last bit."""
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3))
    flat = layers.Flatten()(ops.swapaxes(layers.Conv2D(8, 3, padding="same")(x), 1, 2))
    wide = keras.initializers.RandomNormal(stddev=1.0)
    beside = layers.Flatten()(layers.Conv2D(4, 3, padding="same", kernel_initializer=wide)(x))
    both = [layers.Dense(5)(flat), layers.Dense(4)(layers.Concatenate()([flat, beside]))]
    model = keras.Model(x, both)
    quantize_aware(model)(IMAGES, training=True)
    assert tfopt.quantize(model, representative=IMAGES, samples=64).fully_integer


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
