"""A model that learns from a teacher as well, with its own fit."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_nets import X, assert_same
from keras import layers

import tfopt
from tfopt.compress.distill import distill
from tfopt.compress.prune import prune
from tfopt.compress.strip import strip
from tfopt.errors import UserError

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 4, 64)


def model_of(width=8, activation="softmax", loss="sparse_categorical_crossentropy", **arguments):
    model = keras.Sequential(
        [keras.Input((12,)), layers.Dense(width, "relu"), layers.Dense(4, activation)]
    )
    settings = {"optimizer": keras.optimizers.SGD(0.1), "jit_compile": False, **arguments}
    model.compile(loss=loss, **settings)
    return model


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def divergence(teacher, student, temperature):
    """Return Hinton's soft loss, by hand and from logits."""
    p, q = softmax(teacher / temperature), softmax(student / temperature)
    return temperature**2 * np.mean(np.sum(p * np.log(p / q), axis=-1))


def predictions(*models):
    return [model.predict(X, verbose=0) for model in models]


def assert_learns_from(teacher, student, t, s):
    """``t`` and ``s`` are both models' logits; logarithms of probabilities are some."""
    distill(student, teacher, weight=1.0, temperature=2.0)
    assert student.train_on_batch(X, Y) == pytest.approx(divergence(t, s, 2.0), rel=1e-4)


@pytest.mark.parametrize("activation", ["softmax", None])
def test_the_loss_is_hintons_whether_the_model_gives_probabilities_or_logits(activation):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=activation is None)
    student, teacher = (model_of(width, activation, loss) for width in (8, 16))
    logits = []
    for model in (teacher, student):
        hidden = np.maximum(X @ model.layers[0].kernel.numpy(), 0)
        logits.append(hidden @ model.layers[1].kernel.numpy())
    own = -np.mean(np.log(softmax(logits[1])[np.arange(len(Y)), Y]))
    # Evaluated for the first time: Keras would use a test function that was compiled before.
    distill(student, teacher, weight=0.3, temperature=2.0)
    assert student.evaluate(X, Y, verbose=0) == pytest.approx(own, rel=1e-5)
    together = student.train_on_batch(X, Y)
    assert together == pytest.approx(0.7 * own + 0.3 * divergence(*logits, 2.0), rel=1e-4)


def test_binary_outputs_and_values_are_compared_by_what_they_are():
    for loss, activation in (("binary_crossentropy", "sigmoid"), ("mse", None)):
        y = RNG.uniform(size=(64, 4)).astype("float32")
        student, teacher = (model_of(width, activation, loss) for width in (8, 16))
        own = student.evaluate(X, y, verbose=0)
        t, s = predictions(teacher, student)
        distill(student, teacher, weight=0.5, temperature=1.0)
        if loss == "mse":
            expected = np.mean((t - s) ** 2)
        else:
            expected = np.mean(t * np.log(t / s) + (1 - t) * np.log((1 - t) / (1 - s)))
        assert student.train_on_batch(X, y) == pytest.approx(0.5 * (own + expected), rel=1e-3)


losses = keras.losses


@pytest.mark.parametrize(
    "loss",
    [
        losses.SparseCategoricalCrossentropy(from_logits=True, name="mine"),
        functools.partial(losses.sparse_categorical_crossentropy, from_logits=True),
    ],
)
def test_what_outputs_are_is_read_off_the_loss_whatever_it_is_called(loss):
    student, teacher = model_of(8, None, loss), model_of(16, None, loss)
    assert_learns_from(teacher, student, *predictions(teacher, student))


def test_a_teacher_that_gives_logits_teaches_a_model_that_gives_probabilities():
    of_logits = losses.SparseCategoricalCrossentropy(from_logits=True)
    student, teacher = model_of(8), model_of(16, None, of_logits)
    t, s = predictions(teacher, student)
    assert_learns_from(teacher, student, t, np.log(s))


def test_padding_that_the_loss_leaves_out_is_left_out_of_the_distance():
    def tagger(width):
        words = keras.Input((6,), dtype="int32")
        x = layers.LSTM(width, return_sequences=True)(layers.Embedding(9, 8, mask_zero=True)(words))
        model = keras.Model(words, layers.Dense(4, "softmax")(x))
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
        return model

    student, teacher = tagger(4), tagger(8)
    teacher.set_weights([5 * each for each in teacher.get_weights()])
    words = RNG.integers(1, 9, (16, 6)) * (np.arange(6) < 2)
    t, s = (np.log(model.predict(words, verbose=0))[:, :2] for model in (teacher, student))
    distill(student, teacher, weight=1.0, temperature=1.0)
    found = student.train_on_batch(words, np.zeros((16, 6)))
    assert found == pytest.approx(divergence(t, s, 1.0), rel=1e-4)


def two_values(width, **arguments):
    x = keras.Input((12,))
    h = layers.Dense(width, "relu")(x)
    model = keras.Model(x, [layers.Dense(1, name="one")(h), layers.Dense(1, name="two")(h)])
    model.compile("sgd", jit_compile=False, **arguments)
    return model


@pytest.mark.parametrize(
    ("arguments", "counts"),
    [
        ({"loss": "mse"}, (1, 1)),
        ({"loss": ["mse", "mse"], "loss_weights": [0.5, 0.0]}, (0.5, 0)),
        ({"loss": {"one": "mse", "two": "mae"}, "loss_weights": {"two": 3, "one": 1}}, (1, 3)),
        pytest.param(
            {"loss": ["mse", None]},
            (1, 0),
            marks=pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning"),
        ),
    ],
)
def test_outputs_count_as_much_as_in_the_models_own_loss(arguments, counts):
    student, teacher = two_values(4, **arguments), two_values(8, **arguments)
    pairs = zip(*predictions(teacher, student), strict=True)
    expected = sum(n * np.mean((t - s) ** 2) for n, (t, s) in zip(counts, pairs, strict=True))
    distill(student, teacher, weight=1.0)
    labels = [RNG.normal(size=(64, 1)) for _ in range(2)]
    assert student.train_on_batch(X, labels, return_dict=True)["loss"] == pytest.approx(
        expected, rel=1e-4
    )


def test_sample_weights_and_regularisers_count_as_before():
    weights = RNG.uniform(size=64).astype("float32")
    student, teacher = model_of(), model_of(16)
    student.layers[0].kernel_regularizer = student.layers[0].kernel.regularizer = (
        keras.regularizers.L2(0.1)
    )
    own = student.evaluate(X, Y, sample_weight=weights, verbose=0)
    assert own > 0.1 * np.sum(student.layers[0].kernel.numpy() ** 2)
    distill(student, teacher, weight=0.5, temperature=1.0)
    p, q = predictions(teacher, student)
    soft = np.mean(np.sum(p * np.log(p / q), axis=-1) * weights)
    together = student.train_on_batch(X, Y, sample_weight=weights)
    assert together == pytest.approx(0.5 * own + 0.5 * soft, rel=1e-4)


def test_several_outputs_have_their_own_meanings():
    def two_heads(width):
        x = keras.Input((12,))
        h = layers.Dense(width, "relu")(x)
        outputs = {"kind": layers.Dense(4, "softmax")(h), "size": layers.Dense(1)(h)}
        model = keras.Model(x, outputs)
        losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
        model.compile("sgd", losses, jit_compile=False)
        return model

    student, teacher = two_heads(4), two_heads(8)
    labels = {"kind": Y, "size": RNG.normal(size=(64, 1))}
    own = student.evaluate(X, labels, verbose=0, return_dict=True)["loss"]
    t, s = predictions(teacher, student)
    distill(student, teacher, weight=0.5, temperature=1.0)
    expected = np.mean(np.sum(t["kind"] * np.log(t["kind"] / s["kind"]), axis=-1))
    expected += np.mean((t["size"] - s["size"]) ** 2)
    found = student.train_on_batch(X, labels, return_dict=True)["loss"]
    assert found == pytest.approx(0.5 * own + 0.5 * expected, rel=1e-4)


def test_the_teacher_alone_teaches_and_does_not_change():
    student, teacher = model_of(16, steps_per_execution=2), model_of(16)
    student.set_weights([w + RNG.normal(0, 0.1, w.shape) for w in teacher.get_weights()])
    before = teacher.get_weights()
    distill(student, teacher, weight=1.0, temperature=1.0)
    p = teacher.predict(X, verbose=0)
    apart = np.abs(student.predict(X, verbose=0) - p).mean()
    student.fit(X, Y, batch_size=16, epochs=20, verbose=0)
    assert np.abs(student.predict(X, verbose=0) - p).mean() < 0.5 * apart
    assert_same(before, teacher)
    assert teacher.trainable


def test_the_teacher_is_called_as_in_inference():
    inner = [layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dropout(0.5)]
    teacher = keras.Sequential([keras.Input((12,)), *inner, layers.Dense(4, "softmax")])
    # Far from the mean and variance of a batch, which it would take in training.
    inner[1].set_weights([*RNG.uniform(1, 2, (4, 16))])
    before, student = teacher.get_weights(), model_of()
    assert_learns_from(teacher, student, *map(np.log, predictions(teacher, student)))
    assert_same(before, teacher)


def test_strip_lets_the_teacher_go_and_files_never_hold_it(tmp_path):
    student, teacher = model_of(), model_of(64)
    distill(prune(student, 0.5), teacher)
    student.fit(X, Y, batch_size=16, verbose=0)
    assert len(student.weights) == 4
    student.save(tmp_path / "m.keras")
    assert len(keras.models.load_model(tmp_path / "m.keras").weights) == 4
    strip(student)
    assert "compute_loss" not in vars(student)
    own = student.evaluate(X, Y, verbose=0)
    assert student.train_on_batch(X, Y) == pytest.approx(own, rel=1e-5)
    # Half of them were held at zero; what a unit that is never active has stays there.
    assert np.mean(student.layers[0].kernel.numpy() == 0) < 0.25


def test_what_would_be_made_without_the_teacher_is_refused():
    model, teacher = model_of(), model_of()
    distill(model, teacher)
    for make in (
        lambda: tfopt.mixed_precision(model, "mixed_bfloat16"),
        lambda: tfopt.Job.from_model(model, (X, Y)),
    ):
        with pytest.raises(UserError, match=r"tfopt\.distill does(.|\n)*strip\(model\) first"):
            make()
    tfopt.Job.from_model(tfopt.strip(model), (X, Y))


def test_mixed_precision_and_a_teacher_in_float32():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        student = model_of()
    finally:
        keras.config.set_dtype_policy("float32")
    distill(student, model_of(16))
    losses = student.fit(X, Y, batch_size=16, epochs=3, verbose=0).history["loss"]
    assert np.isfinite(losses).all()


def gradient_step(model, data):
    x, y, _ = data
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True))
    weights = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, weights), weights)
    return {"loss": loss}


class ByMethod(keras.Model):
    def train_step(self, data):
        return self.one_step(data)

    def one_step(self, data):
        return gradient_step(self, data)


class Blind(keras.Model):
    def train_step(self, data):
        x, y, _ = data
        return {"loss": self.compute_loss(y=y, y_pred=self(x, training=True))}


class Deaf(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - tf.one_hot(y, 4)) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def own_model(kind):
    x = keras.Input((12,))
    model = kind(x, layers.Dense(4, "softmax")(x))
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def test_a_train_step_of_ones_own_takes_the_teachers_loss():
    model, teacher = own_model(ByMethod), model_of(16)
    assert_learns_from(teacher, model, *map(np.log, predictions(teacher, model)))


def test_a_train_step_that_does_not_ask_the_teacher_is_told():
    model = distill(own_model(Deaf), model_of(16))
    model.fit(X, Y, verbose=0)
    with pytest.warns(UserWarning, match="the teacher taught nothing"):
        strip(model)
    with pytest.raises(UserError, match="compute_loss without x"):
        distill(own_model(Blind), model_of(16)).train_on_batch(X, Y)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"weight": 1.5}, "0 < weight <= 1"),
        ({"temperature": float("inf")}, "0 < temperature"),
    ],
)
def test_bad_numbers_are_refused(arguments, words):
    model = model_of()
    with pytest.raises(UserError, match=words):
        tfopt.distill(model, model_of(16), **arguments)
    assert "compute_loss" not in vars(model)


def test_a_teacher_that_cannot_teach_is_refused():
    model = model_of()
    for own in (model, keras.Model(model.inputs, model.outputs)):
        with pytest.raises(UserError, match="would change with it"):
            distill(model, own)
    with pytest.raises(UserError, match="other outputs"):
        distill(model, keras.Sequential([keras.Input((12,)), layers.Dense(3)]))
    with pytest.raises(UserError, match="not built"):
        distill(model, keras.Sequential([layers.Dense(4)]))


def test_a_frozen_layer_may_be_shared_with_the_teacher():
    base = layers.Dense(8, "relu", trainable=False)
    student, teacher = (
        keras.Sequential([keras.Input((12,)), base, layers.Dense(4, "softmax")]) for _ in range(2)
    )
    student.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    distill(student, teacher).train_on_batch(X, Y)
