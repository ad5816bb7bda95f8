"""Losses of a model's own on batches of a known size: read along the axis of the examples.

With a known size another axis may have just as many places, and numbers may be just as many.
"""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import tfopt
from tfopt.distribute.mends.example_axes import NONE, UNSURE, ExampleAxes, is_of_data

from .replicas import K, L, O, built, dense, largest, trained, x, y


class Own(keras.Model):
    def __init__(self, loss_of, *arguments):
        super().__init__(*arguments)
        self.loss_of = loss_of
        self.weight = self.add_weight(shape=(), initializer="ones", name="weight")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.loss_of(self, y, y_pred, super().compute_loss)


class OwnStep(keras.Model):
    def __init__(self, loss_of, *arguments):
        super().__init__(*arguments)
        self.loss_of = loss_of
        self.weight = self.add_weight(shape=(), initializer="ones", name="weight")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, y, self(x, training=True), self.compute_loss)
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"loss": loss}


def sum_of_means(m, a, b, plain):
    return ops.sum(ops.mean((a - b) ** 2, axis=0))


def mean_of_sums(m, a, b, plain):
    return 0.05 * ops.mean(ops.sum((a - b) ** 2, axis=0))


def trained_factor(m, a, b, plain):
    return ops.exp(-m.weight) * plain(None, a, b) + m.weight


def factor_of_a_sum(m, a, b, plain):
    return m.weight * ops.sum((a - b) ** 2) * 0.01


def factor_of_data(m, a, b, plain):
    return m.weight * ops.mean(a) + ops.mean((a - b) ** 2)


def by_their_number(m, a, b, plain):
    return tf.reduce_sum((a - b) ** 2) / tf.cast(tf.shape(a)[0], tf.float32)


LOSSES = [
    sum_of_means,
    mean_of_sums,
    trained_factor,
    factor_of_a_sum,
    factor_of_data,
    by_their_number,
]
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(24, 6)).astype("f"), rng.normal(size=(24, 4)).astype("f")


def model_of(kind, loss_of, **compiled):
    keras.utils.set_random_seed(0)
    i = keras.Input((6,))
    model = kind(loss_of, i, K.Dense(4)(K.Dense(8, "tanh")(i)))
    model.compile(O.SGD(0.05), "mse", jit_compile=False, **compiled)
    return model


def fitted(model, static=True):
    if static:
        # Four examples a replica, and four outputs.
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=True)
        told = model.fit(data, epochs=2, verbose=0, shuffle=False)
    else:
        told = model.fit(X, Y, batch_size=10, epochs=2, verbose=0, shuffle=False)
    return model.get_weights(), told.history["loss"]


def differences(cases, static):
    with tfopt.distribute(logical_cpus=2):
        several = {name: made() for name, made in cases.items()}
    found = {}
    for name, made in cases.items():
        (one, wanted), (two, told) = fitted(made(), static), fitted(several[name], static)
        found[name] = [largest(one, two), largest([wanted], [told])]
    return found


def counted(losses, static):
    cases = {
        f"{kind.__name__} {loss.__name__}": functools.partial(model_of, kind, loss)
        for kind in (Own, OwnStep)
        for loss in losses
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return differences(cases, static)


@pytest.mark.parametrize(
    ("losses", "static"),
    [
        ([sum_of_means, trained_factor], True),
        ([by_their_number], False),
        pytest.param([mean_of_sums, factor_of_a_sum, factor_of_data], True, marks=pytest.mark.slow),
        pytest.param(LOSSES[:-1], False, marks=pytest.mark.slow),
    ],
)
def test_each_is_counted_as_on_one_device(replicas, losses, static):
    found = replicas(counted, losses, static)
    assert max(weights for weights, _ in found.values()) < 1e-5, found
    shown = {name: gap for name, (_, gap) in found.items() if name.startswith("OwnStep")}
    assert static is False or max(shown.values()) < 1e-5, shown


def refused():
    def number(m, a, b, plain):
        return ops.sum((a - b) ** 2) / 4

    def constant(m, a, b, plain):
        return m.weight * (ops.sum((a - b) ** 2) + 3.0)

    with tfopt.distribute(logical_cpus=2):
        models = [model_of(Own, number), model_of(OwnStep, constant)]
    found = []
    for model in models:
        before = model.get_weights()
        try:
            fitted(model)
        except tfopt.errors.UserError as error:
            found.append((str(error), largest(before, model.get_weights())))
    return found


def test_what_may_be_their_number_or_any_other_is_refused(replicas):
    number, constant = replicas(refused)
    assert "a sum that is divided by 4.0" in number[0]
    assert "what is trained times a sum of means and sums" in constant[0]
    assert number[1] == constant[1] == 0.0


def comparing():
    def in_batch(m, a, b, plain):
        scores = ops.matmul(a, ops.transpose(b))
        wanted = ops.arange(ops.shape(a)[0])
        return ops.mean(L.sparse_categorical_crossentropy(wanted, scores, from_logits=True))

    def apart(m, a, b, plain):
        return ops.mean(ops.square(a[:, None] - b[None]))

    def told(made):
        with tfopt.distribute(logical_cpus=2):
            model = made()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            model.fit(X, Y, batch_size=8, verbose=0)
        return [str(each.message) for each in heard if each.category is RuntimeWarning]

    class Each(keras.losses.Loss):
        def call(self, a, b):
            scores = tf.einsum("if,jf->ij", a, b)
            return L.sparse_categorical_crossentropy(
                tf.range(tf.shape(a)[0]), scores, from_logits=True
            )

    def by_keras():
        model = keras.Sequential([keras.Input((6,)), K.Dense(4)])
        model.compile("sgd", Each(), jit_compile=False)
        return model

    def gram(m, a, b, plain):
        # Over the features of each example, and over the examples: nothing is compared.
        return ops.mean(ops.einsum("if,ig->ifg", a, b)) + ops.mean(
            ops.matmul(a[:, None], b[..., None])
        )

    made = [
        lambda: model_of(OwnStep, in_batch),
        lambda: model_of(Own, apart),
        by_keras,
        lambda: model_of(OwnStep, gram),
    ]
    return [told(each) for each in made]


def test_a_comparison_between_examples_is_told(replicas):
    step, own, keras_own, gram = replicas(comparing)
    for texts in (step, own, keras_own):
        assert len([text for text in texts if "compares the examples of a batch" in text]) == 1
        assert not any("so that the weights are those" in text for text in texts)
    assert not any("compares" in text for text in gram)


numbers = rng.normal(size=(8, 40)).astype("f")


@functools.cache
def start():
    # Made outside, and too large to be written into a graph: a step captures it.
    with tf.init_scope():
        return tf.constant(numbers)


def kernel(m):
    return tf.convert_to_tensor(m.layers[-1].kernel)


def squares(a, b):
    return ops.sum((a - b) ** 2, axis=1)


def seen(a):
    return a[:, 0] > 0.5


def from_a_start(m, a, b, plain):
    return ops.mean((a - b) ** 2) + 0.01 * ops.sum((ops.tile(kernel(m), (1, 10)) - start()) ** 2)


def sampled(m, a, b, plain):
    # Four, the examples of a replica, are its other axis.
    drawn = kernel(m) + keras.random.normal((8, 4), stddev=1e-7, seed=1)
    return ops.mean((a - b) ** 2) + 0.01 * ops.sum(drawn**2)


def known_factor(m, a, b, plain):
    return ops.mean((a - b) ** 2) * ops.mean(start() ** 2)


def masked(m, a, b, plain):
    return tf.reduce_mean(tf.boolean_mask(squares(a, b), seen(a)))


def masked_sum(m, a, b, plain):
    kept = tf.boolean_mask(squares(a, b), seen(a))
    return tf.reduce_sum(kept) / tf.cast(tf.shape(kept)[0], "float32")


def by_weights(m, a, b, plain):
    kept = tf.cast(seen(a), "float32")
    return ops.sum(squares(a, b) * kept) / (ops.sum(kept) + 1e-8) + 0.1 * ops.mean(ops.abs(b))


def both(m, a, b, plain):
    return masked(m, a, b, plain) + plain(None, a, b) + 0.01 * ops.sum(kernel(m) ** 2)


def halved(m, a, b, plain):
    return 0.5 * ops.mean((a - b) ** 2) + ops.mean(ops.abs(b)) / 2


OVER_SOME = [from_a_start, sampled, known_factor, masked, masked_sum, by_weights, both, halved]


class Added(K.Dense):
    def call(self, x):
        drawn = self.kernel + keras.random.normal(self.kernel.shape, stddev=1e-7, seed=1)
        self.add_loss(0.01 * ops.sum((ops.tile(drawn, (1, 10)) - start()) ** 2))
        return super().call(x)


def with_added():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), K.Dense(8), Added(4)])
    model.compile(O.SGD(0.05), "mse", jit_compile=False)
    return model


def over_some(static, *losses):
    kind = Own if static else OwnStep
    cases = {loss.__name__: functools.partial(model_of, kind, loss) for loss in losses}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = differences(cases | {"added": with_added}, static)
    return [found, [str(each.message) for each in heard]]


@pytest.mark.parametrize(
    ("static", "losses"),
    [
        (True, [sampled, masked_sum, halved]),
        pytest.param(True, OVER_SOME, marks=pytest.mark.slow),
        pytest.param(False, OVER_SOME, marks=pytest.mark.slow),
    ],
)
def test_sums_over_weights_and_means_over_some_examples_are_those_of_one_device(
    replicas, static, losses
):
    found, heard = replicas(over_some, static, *losses)
    assert max(weights for weights, _ in found.values()) < 1e-5, found
    shown = {name: gap for name, (_, gap) in found.items()}
    assert static or max(shown.values()) < 1e-5, shown
    assert not any("compares" in text for text in heard)
    doubted = sorted(text for text in heard if "is taken for a factor" in text)
    assert len(doubted) == 2
    assert "a mean that is multiplied by 0.5, with 2 replicas" in doubted[1]


def with_a_call():
    class Own(keras.losses.Loss):
        def __call__(self, a, b, sample_weight=None):
            return keras.ops.mean((a - b) ** 2)

    def kept(a, b):
        return keras.ops.mean((a - b) ** 2, keepdims=True)[0]

    with tfopt.distribute(logical_cpus=2):
        refused, model = built(dense, O.SGD, Own()), built(dense, O.SGD, kept)
    one = built(dense, O.SGD, kept)
    # The last batch leaves the second replica without an example.
    data = (x[:17], y[:17])
    (plain, wanted), (ours, told) = trained(one, data), trained(model, data)
    try:
        trained(refused, data)
    except tfopt.errors.UserError as error:
        return str(error), largest(plain, ours), largest(wanted.values(), told.values())


def test_a_call_of_a_loss_s_own_is_refused_and_an_axis_that_was_kept_is_one_number(replicas):
    text, weights, told = replicas(with_a_call)
    assert "Own has a __call__ of its own" in text
    assert weights < 1e-6
    assert told < 1e-5


def axis_of(value, compared=False):
    """The axis of the examples in what a function gives for a batch of four rows of four."""

    def traced(x):
        axes = ExampleAxes(tf.compat.v1.get_default_graph(), 4, is_of_data)
        result = value(x)
        found.append((axes.of(result), axes.compares(result)))
        return result

    found = []
    tf.function(traced, autograph=False).get_concrete_function(tf.TensorSpec((4, 4, 3)))
    ((axis, compares),) = found
    assert compares is compared
    return axis


SQUARE = tf.ones((4, 4))
TABLE = list(range(8))


@pytest.mark.parametrize(
    ("value", "axis"),
    [
        (lambda x: tf.nn.relu(x) * 2.0 + tf.ones((3,)), 0),
        (lambda x: tf.transpose(x, (1, 2, 0)), 2),
        (lambda x: tf.reduce_mean(x, 0), NONE),
        (lambda x: tf.reduce_mean(x, (0, 1)), NONE),
        (lambda x: tf.reduce_sum(x, 1), 0),
        (lambda x: tf.reduce_sum(tf.transpose(x, (1, 0, 2)), 0), 0),
        (lambda x: tf.reduce_max(x, 0, keepdims=True), NONE),
        (lambda x: x - tf.reduce_mean(x, 1, keepdims=True), 0),
        (lambda x: x + tf.random.normal((4, 4, 3)), 0),
        (lambda x: tf.random.normal((8, 3)) * 2.0, 0),
        (lambda x: tf.random.normal((3, 4)) + 1.0, NONE),
        (lambda x: tf.gather(tf.constant(TABLE), tf.cast(x[:, 0, 0], tf.int32)), 0),
        (lambda x: tf.gather(x, [0, 2], axis=1), 0),
        (lambda x: tf.boolean_mask(x, x[:, 0, 0] > 0), UNSURE),
        (lambda x: tf.nn.softmax(x), 0),
        (lambda x: tf.cumsum(x, 1) + tf.roll(x, 1, 2) + tf.reverse(x, [1]), 0),
        (lambda x: tf.math.top_k(x, 2).values, 0),
        (lambda x: tf.nn.batch_normalization(x, *tf.nn.moments(x, 0), 0.0, 1.0, 1e-3), 0),
        (lambda x: tf.matmul(x[:, 0], x[:, 1], transpose_a=True), NONE),
        (lambda x: tf.einsum("itf,iuf->tui", x, x), 2),
        (lambda x: tf.expand_dims(x, 0), 1),
        (lambda x: tf.squeeze(tf.expand_dims(x, 0), 0), 0),
        (lambda x: tf.stack([x, x], axis=0), 1),
        (lambda x: tf.stack([x, x], axis=1), 0),
        (lambda x: x[0], UNSURE),
        (lambda x: tf.unstack(x)[0], UNSURE),
        (lambda x: tf.matmul(x[..., :2], tf.ones((4, 2, 3))), 0),
        (lambda x: SQUARE + 1.0, NONE),
    ],
)
def test_the_axis_is_followed(value, axis):
    assert axis_of(value) == axis


@pytest.mark.parametrize(
    "value",
    [
        lambda x: tf.matmul(x[:, 0], x[:, 0], transpose_b=True),
        lambda x: tf.einsum("if,jf->ij", x[:, 0], x[:, 1]),
        lambda x: x[:, None] - x[None],
        lambda x: tf.reduce_sum(tf.nn.softmax(tf.matmul(x[:, 0], x[:, 0], transpose_b=True)), 1),
        lambda x: x - tf.reduce_mean(x, 0, keepdims=True),
        lambda x: x / tf.stop_gradient(tf.sqrt(tf.reduce_mean(x))),
        lambda x: tf.nn.softmax(x[:, 0, 0]),
        lambda x: tf.roll(x, 1, 0),
        lambda x: tf.reverse(x, [0]),
        lambda x: tf.sort(x[:, 0, 0]),
        lambda x: tf.gather(x, tf.argsort(x[:, 0, 0])),
        lambda x: tf.math.cumulative_logsumexp(x[:, 0, 0]),
        lambda x: tf.random.shuffle(x),
    ],
)
def test_what_was_compared_is_known(value):
    assert axis_of(value, compared=True) == 0
