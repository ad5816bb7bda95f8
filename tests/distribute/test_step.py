"""What Keras's own step trains and shows on several replicas is what one device does."""

from contextlib import nullcontext, suppress

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import tfopt

from .training import (
    Case,
    K,
    L,
    O,
    check,
    compared,
    dense,
    error_of,
    labels,
    largest,
    net,
    rng,
    x,
    y,
)

weights = rng.uniform(size=69).astype("float32")
words = rng.integers(1, 9, size=(69, 7))
words[:32, 2:] = 0
words[50:, 6:] = 0
tags = rng.integers(0, 3, size=(69, 7))
images = rng.normal(size=(65, 8, 8, 3)).astype("float32")
positive = (y > 0).astype("float32")
SPARSE = "sparse_categorical_crossentropy"


def reader():
    return [
        K.Embedding(9, 5, mask_zero=True),
        K.LSTM(6, return_sequences=True),
        K.Dense(3, "softmax"),
    ]


def classes():
    return [K.Dense(8, "tanh"), K.Dense(3, "softmax")]


class Positions(K.Layer):
    def __init__(self):
        super().__init__()
        self.words, self.places = K.Embedding(9, 4), K.Embedding(7, 4)

    def call(self, x):
        return self.words(x) + self.places(ops.arange(ops.shape(x)[-1]))


def contrast(labels, outputs):
    """Compare the examples of a batch with each other."""
    outputs = ops.normalize(outputs, axis=-1)
    scores = ops.matmul(outputs, ops.transpose(outputs)) / 0.2
    labels = ops.reshape(labels, (-1, 1))
    same = ops.cast(ops.equal(labels, ops.transpose(labels)), "float32")
    return -ops.sum(same * ops.log_softmax(scores, axis=-1), axis=-1) / ops.sum(same, axis=-1)


class Worst(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="worst")
        self.largest = self.add_variable((), "zeros")

    def update_state(self, wanted, given, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(wanted - given))))

    def result(self):
        return self.largest


def focal(wanted, given):
    given = ops.clip(given, 1e-6, 1.0)
    return -ops.sum((1 - given) ** 2 * ops.one_hot(wanted, 3) * ops.log(given), axis=-1)


def declared(wanted, given):
    return focal(wanted, given)


declared.adds_up = True


def rows_apart(wanted, given):
    return ops.std(wanted - given)


class Shared(K.Layer):
    """Add a loss, and show its mean."""

    def __init__(self, how):
        super().__init__()
        self.how, self.shown = how, keras.metrics.Mean(name="shown")

    def call(self, x):
        added = 0.3 * self.how(ops.square(x))
        self.add_loss(added)
        self.shown.update_state(added)
        return x


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        plain = super().compute_loss(x, y, y_pred, sample_weight, training)
        return plain + 0.1 * ops.std(ops.mean(x, -1) * y_pred[:, 0])


def own_loss():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    model = OwnLoss(inputs, K.Dense(3)(K.Dense(8, "tanh", activity_regularizer="l2")(inputs)))
    model.compile("sgd", "mse", jit_compile=False)
    return model


def optimizers():
    """Return one of each of Keras's optimizers."""
    kinds = (
        *(O.Adadelta, O.Adafactor, O.Adagrad, O.Adam, O.Adamax, O.AdamW, O.Ftrl, O.Lamb, O.Lion),
        *(O.Muon, O.Nadam, O.RMSprop, O.SGD),
    )
    decayed = {"weight_decay": 0.1}
    return {kind.__name__: lambda kind=kind: kind(0.01, **decayed) for kind in kinds}


def two_outputs():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    inner = K.Dense(8, "tanh")(inputs)
    heads = {"a": K.Dense(3, "softmax", name="a")(inner), "b": K.Dense(3, name="b")(inner)}
    model = keras.Model(inputs, heads)
    model.compile(
        "adam",
        {"a": SPARSE, "b": "mse"},
        loss_weights={"a": 1.0, "b": 0.3},
        metrics={"a": "accuracy", "b": "mae"},
        jit_compile=False,
    )
    return model


def metrics():
    return [
        "mae",
        keras.metrics.RootMeanSquaredError(),
        keras.metrics.R2Score(),
        Worst(),
        rows_apart,
    ]


def convolution(*after):
    return lambda: [
        K.Conv2D(4, 3),
        *(each() for each in after),
        K.MaxPooling2D(),
        K.Flatten(),
        K.Dense(3, "softmax"),
    ]


def synchronized():
    return [K.BatchNormalization(synchronized=True), *dense()]


CASES = {
    "metrics": lambda: Case(net(metrics=metrics)),
    "sample weights": lambda: Case(
        net(classes, loss=SPARSE, weighted_metrics=["accuracy"]), (x, labels, weights)
    ),
    "class weights": lambda: Case(
        net(classes, loss=SPARSE), (x, labels), fit={"class_weight": {0: 0.2, 1: 1.0, 2: 3.0}}
    ),
    "masked": lambda: Case(
        net(reader, O.Adam, SPARSE, (7,), "int32", metrics=["accuracy"]), (words, tags)
    ),
    "several outputs": lambda: Case(two_outputs, (x, {"a": labels, "b": y})),
    "a sum": lambda: Case(
        net(loss=L.MeanSquaredError(reduction="sum"), optimizer=lambda: O.SGD(1e-3))
    ),
    "mean with weights": lambda: Case(
        net(loss=L.MeanSquaredError(reduction="mean_with_sample_weight")), (x, y, weights)
    ),
    "not reduced": lambda: Case(net(loss=L.MeanSquaredError(reduction=None)), evaluate=False),
    "examples compared": lambda: Case(net(dense, O.Adam, contrast), (x, labels)),
    "said to add up": lambda: Case(net(classes, loss=declared), (x, labels)),
    "a ratio": lambda: Case(net(lambda: [K.Dense(3, "sigmoid")], O.Adam, L.Dice()), (x, positive)),
    "regularizers": lambda: Case(
        net(lambda: [K.Dense(8, kernel_regularizer="l2"), K.Dense(3, activity_regularizer="l2")])
    ),
    "an added mean": lambda: Case(net(lambda: dense(Shared(ops.mean))), own="mean"),
    "an added sum": lambda: Case(
        net(lambda: dense(Shared(ops.sum)), lambda: O.SGD(1e-3)), own="sum"
    ),
    "own compute_loss": lambda: Case(own_loss),
    "global_clipnorm": lambda: Case(net(optimizer=lambda: O.AdamW(0.03, global_clipnorm=0.05))),
    "clipped average": lambda: Case(
        net(optimizer=lambda: O.SGD(0.1, clipnorm=0.1, use_ema=True, ema_overwrite_frequency=3))
    ),
    "accumulated steps": lambda: Case(
        net(optimizer=lambda: O.Adam(gradient_accumulation_steps=3), steps_per_execution=4)
    ),
    "scaled": lambda: Case(net(optimizer=lambda: O.LossScaleOptimizer(O.SGD(0.1, clipnorm=0.5)))),
    "compiled": lambda: Case(net(optimizer=O.Adam, jit_compile=True, metrics=["mae"])),
    "synchronized": lambda: Case(net(synchronized)),
    "positions": lambda: Case(
        net(lambda: [Positions(), K.Flatten(), K.Dense(3)], O.Adam, "mse", (7,), "int32"),
        (words, y),
    ),
    "one example left": lambda: Case(
        net(convolution(), loss=SPARSE, inputs=(8, 8, 3), metrics=["accuracy"]),
        (images, labels[:65]),
    ),
    "eager": lambda: Case(net(run_eagerly=True, metrics=["mae"]), fit={"epochs": 1}),
    "validated": lambda: Case(
        net(metrics=["mae"]),
        fit={"validation_data": (x[:19], y[:19]), "validation_batch_size": 6},
        evaluate=False,
    ),
}
CASES |= {
    f"by {name}": lambda optimizer=optimizer: Case(net(optimizer=optimizer))
    for name, optimizer in optimizers().items()
}
FAST = ("metrics", "examples compared", "one example left")
SLOW = [name for name in CASES if name not in FAST]


def cases(*names):
    return compared({name: CASES[name]() for name in names})


@pytest.mark.parametrize(
    "names", [FAST, *(pytest.param(SLOW[n::4], marks=pytest.mark.slow) for n in range(4))]
)
def test_the_weights_and_the_numbers_shown_are_those_of_one_device(replicas, names):
    check(replicas(cases, *names))


def all_on_four():
    with tfopt.distribute(logical_cpus=4):
        pass  # before the first tensor
    return compared({name: case() for name, case in CASES.items()}, 4)


@pytest.mark.slow
def test_so_they_are_on_four_replicas(alone):
    check(alone(all_on_four))


def overflown():
    """Train with an infinite gradient on the second replica alone."""
    found = {}

    def optimizer():
        return O.LossScaleOptimizer(O.SGD(1e-3), initial_scale=1024.0, dynamic_growth_steps=3)

    data = x[:64].copy()
    data[16 + 12] = 60000  # too much for half precision, of one example
    models = {}
    with tfopt.distribute(logical_cpus=2, verify=False):
        models["two"] = net(lambda: [K.Dense(8, dtype="mixed_float16"), K.Dense(3)], optimizer)()
    models["one"] = net(lambda: [K.Dense(8, dtype="mixed_float16"), K.Dense(3)], optimizer)()
    for name, model in models.items():
        model.fit(data, y[:64], batch_size=16, shuffle=False, verbose=0)
        rule = model.optimizer
        counts = (rule.dynamic_scale, rule.step_counter, rule.inner_optimizer.iterations)
        found[name] = model.get_weights(), [float(each.numpy()) for each in counts]
    return found


def test_a_batch_that_overflows_on_one_replica_is_left_out_as_on_one_device(replicas):
    found = replicas(overflown)
    (one, alone), (two, together) = found["one"], found["two"]
    assert largest(one, two) < 5e-4
    # Of four batches the second was left out, and halved the scale.
    assert alone == together == [512.0, 2.0, 3.0]


def predicted_ends():
    """Predict where the last batch leaves a replica without an example."""
    found = []
    for several in (True, False):
        with tfopt.distribute(logical_cpus=2, verify=False) if several else nullcontext():
            model = net(convolution(K.BatchNormalization), inputs=(8, 8, 3), loss=SPARSE)()
        found.append([model.predict(images[:17], batch_size=16, verbose=0)])
    return largest(*found)


def test_predictions_end_as_on_one_device(replicas):
    assert replicas(predicted_ends) < 1e-6


def statistics():
    with tfopt.distribute(logical_cpus=2, verify=False):
        model = net(lambda: [K.BatchNormalization(momentum=0.0)], lambda: O.SGD(0.0), "mae")()
    seen = np.repeat(np.float32([1, 3]), 8 * 6).reshape(16, 6)
    model.fit(seen, seen, batch_size=16, shuffle=False, verbose=0)
    layer = model.layers[0]
    copies = [each.numpy().tolist() for each in layer.moving_mean.value.values]
    return copies, layer.moving_variance.numpy().tolist()


def test_moving_statistics_are_the_mean_of_what_the_replicas_saw(replicas):
    copies, variance = replicas(statistics)
    assert copies == [[2.0] * 6] * 2
    assert variance == [0.0] * 6


def undeclared():
    with tfopt.distribute(logical_cpus=2, verify=False):
        model = net(lambda: dense(Shared(ops.mean)))()
    before = model.get_weights()
    return [
        error_of(model.fit, x, y, batch_size=16, verbose=0),
        largest(before, model.get_weights()),
    ]


def test_an_added_loss_that_is_not_declared_is_refused_before_a_weight_moves(replicas):
    added, moved = replicas(undeclared)
    assert "calls add_loss" in added
    assert 'own_losses="mean"' in added
    assert 'own_losses="sum"' in added
    assert moved == 0


def changed_afterwards():
    kinds = (keras.Model, *keras.Model.__mro__, K.Layer, keras.optimizers.Optimizer)
    kinds += (keras.Variable, tf.compat.v1, tf.distribute.DistributedValues, tf.nn, tf.random)
    before = [dict(vars(kind)) for kind in kinds]
    with tfopt.distribute(logical_cpus=2):
        model = net(metrics=["mae"])()
        assert vars(keras.Model) != before[0]
        instance = dict(vars(model))
    model.fit(x, y, batch_size=16, verbose=0)
    with suppress(ZeroDivisionError):
        model.fit(x, y, batch_size=16, verbose=0, callbacks=[Fails()])
    pairs = zip(before, map(vars, kinds), strict=True)
    changed = [n for old, now in pairs for n in {*old, *now} if old.get(n) is not now.get(n)]
    names = ("_compute_loss", "_losses_override")
    changed += [n for n in names if vars(model).get(n) is not instance.get(n)]
    return changed, "apply" in vars(model.optimizer), "update_state" in vars(model._loss_tracker)


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise ZeroDivisionError


def test_nothing_of_keras_or_tensorflow_stays_changed(replicas):
    assert replicas(changed_afterwards) == ([], False, False)
