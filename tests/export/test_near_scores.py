"""What a model's own code hides behind an enormous number leaves the scores their steps."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from one_file import OneFile

from tfopt.compress.quantize_aware import quantization_report
from tfopt.export.litert_forms import litert_forms

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(128, 10, 8)).astype("float32")
# Far from where the file, which rounds it, could see the other side of zero.
ROWS[..., 0] = np.sign(ROWS[..., 0])
CAUSAL = np.tril(np.ones((1, 10, 10), "float32"))


@keras.saving.register_keras_serializable("test_hidden_scores")
class Causal(layers.Layer):
    """As people write it down, with all inside a call of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.all_three, self.out = layers.Dense(24), layers.Dense(8)

    def call(self, x):
        query, key, value = ops.split(self.all_three(x), 3, axis=-1)
        scores = ops.matmul(query, ops.transpose(key, (0, 2, 1))) * 8**-0.5
        length = ops.shape(x)[1]
        scores = ops.where(ops.tril(ops.ones((length, length))) == 0, -1e9, scores)
        return self.out(ops.matmul(ops.softmax(scores, -1), value))


@keras.saving.register_keras_serializable("test_hidden_scores")
class DotProduct(Causal):
    def call(self, x):
        parts = ops.split(self.all_three(x), 3, axis=-1)
        heads = [ops.reshape(part, (-1, 10, 2, 4)) for part in parts]
        found = ops.dot_product_attention(*heads, is_causal=True)
        return self.out(ops.reshape(found, (-1, 10, 8)))


def attend(shares):
    def attended(x):
        query, key, value = (layers.Dense(8)(x) for _ in range(3))
        scores = ops.matmul(query, ops.transpose(key, (0, 2, 1))) / 8**0.5
        return ops.matmul(shares(scores, x), value)

    return attended


def hidden_by_what_is_seen(scores, x):
    seen = ops.cast(x[:, None, :, 0] > 0, "float32")
    return ops.softmax(scores + (1 - seen) * -1e9)


def seen(x):
    return ops.cast(x[:, :, :1] > 0, "float32")


class Chosen(layers.Layer):
    """As the gate of a mixture of experts: the last score is hidden by a whole tensor."""

    def __init__(self, low):
        super().__init__()
        self.low = low

    def call(self, scores):
        return ops.softmax(tf.where(np.arange(4) < 3, scores, self.low(scores)))


BODIES = {
    "sum": attend(lambda scores, x: ops.softmax(scores + (1 - CAUSAL) * -1e9)),
    "difference": attend(lambda scores, x: layers.Softmax()(scores - (1 - CAUSAL) * 1e4)),
    "choice": attend(lambda scores, x: ops.softmax(ops.where(CAUSAL > 0, scores, -1e9))),
    "softmax_layer": attend(lambda scores, x: layers.Softmax()(scores, mask=CAUSAL > 0)),
    "infinite": attend(
        lambda scores, x: layers.Activation("softmax")(ops.where(CAUSAL > 0, scores, -np.inf))
    ),
    "seen": attend(hidden_by_what_is_seen),
    "layer": lambda x: Causal()(x),
    "dot_product": lambda x: DotProduct()(x),
    "highest_sum": lambda x: ops.max(layers.Dense(8)(x) + (1 - seen(x)) * -1e9, axis=1),
    "highest_choice": lambda x: layers.GlobalMaxPooling1D()(
        ops.where(seen(x) > 0, layers.Dense(8)(x), -1e9)
    ),
}
# What a score is hidden by.
LOW = {
    "ones": lambda scores: tf.ones_like(scores) * -1e9,
    "raw_ones": lambda scores: tf.raw_ops.OnesLike(x=scores) * -1e9,
    "infinite": lambda scores: ops.full_like(scores, float("-inf")),
    "broadcast": lambda scores: tf.broadcast_to(-1e9, tf.shape(scores)),
}


def test_the_file_tells_scores_apart():
    file = OneFile(BODIES, ROWS)
    # Each of a handful of places rounds by a step; where no score is left it is 50 to 140 steps.
    off = {
        name: np.abs(file.got[name] - wanted).max() / np.ptp(wanted) * 255
        for name, wanted in file.wanted.items()
    }
    assert {name: steps for name, steps in off.items() if steps > 10} == {}


def test_scores_hidden_by_a_tensor_of_one_number():
    def body(low):
        return lambda x: layers.Dense(3)(Chosen(low)(layers.Dense(4)(x)))

    file = OneFile({name: body(low) for name, low in LOW.items()}, ROWS)
    assert max(file.errors(LOW).values()) < 0.05


def test_training_tells_scores_apart():
    file = OneFile({"choice": BODIES["choice"]}, ROWS)
    plain, trained = file.wanted["choice"], file.trained_aware(momentum=0.5)["choice"]
    # Without a mask it is as much: a moving range cuts the highest scores off.
    assert np.abs(trained - plain).max() <= 25 / 255 * np.ptp(plain)
    row = next(row for row in quantization_report(file.model) if row.kind == "Where")
    assert row.output is None
    assert "hides scores" in row.remark


def test_only_what_hides_is_taken_for_a_mask():
    """A bias, enormous or not beside other numbers, is added as it is; TensorFlow comes back."""
    plain, highest = tf.nn.softmax, tf.reduce_max
    bias = np.where(CAUSAL > 0, 0.5, -1e9).astype("float32")
    scores = tf.constant(RNG.normal(size=(1, 10, 10)), "float32")
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    with litert_forms(model, integers=True):
        for body in (lambda s: s + bias, lambda s: s * 2.0, lambda s: tf.where(s > 0, s, -5.0)):
            traced = tf.function(lambda s, body=body: tf.nn.softmax(body(s)))
            np.testing.assert_allclose(traced(scores), plain(body(scores)), atol=1e-6)
            traced = tf.function(lambda s, body=body: tf.reduce_max(body(s), 1))
            np.testing.assert_array_equal(traced(scores), highest(body(scores), 1))
        # The sum has an axis more than the scores.
        wide = np.where(CAUSAL > 0, 0.0, -1e9).astype("float32")[..., None]
        traced = tf.function(lambda s: tf.reduce_max(s[0] + wide, 1))
        np.testing.assert_array_equal(traced(scores), highest(scores[0] + wide, 1))
    assert tf.nn.softmax is plain
    assert tf.reduce_max is highest
