"""What Keras's own step trains and shows on several replicas is what one device does."""

import importlib
from contextlib import nullcontext, suppress

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import tfopt

from .training import Case, K, L, O, check, compared, dense, labels, largest, net, rng, x, y

images = rng.normal(size=(65, 8, 8, 3)).astype("float32")
weights = rng.uniform(size=69).astype("float32")
SPARSE = "sparse_categorical_crossentropy"


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


focal.adds_up = True


def rows_apart(wanted, given):
    return ops.std(wanted - given)


class Shared(K.Layer):
    """Add a loss, and show its mean."""

    def __init__(self):
        super().__init__()
        self.shown = keras.metrics.Mean(name="shown")

    def call(self, x):
        added = 0.3 * ops.mean(ops.square(x))
        self.add_loss(added)
        self.shown.update_state(added)
        return x


def metrics():
    return ["mae", keras.metrics.RootMeanSquaredError(), Worst(), rows_apart]


def convolution(*after):
    return lambda: [
        K.Conv2D(4, 3),
        *(each() for each in after),
        K.MaxPooling2D(),
        K.Flatten(),
        K.Dense(3, "softmax"),
    ]


CASES = {
    "metrics": lambda: Case(net(metrics=metrics)),
    "one example left": lambda: Case(
        net(convolution(), loss=SPARSE, inputs=(8, 8, 3), metrics=["accuracy"]),
        (images, labels[:65]),
    ),
    "mean with weights": lambda: Case(
        net(loss=L.MeanSquaredError(reduction="mean_with_sample_weight")), (x, y, weights)
    ),
    "not reduced": lambda: Case(net(loss=L.MeanSquaredError(reduction=None)), evaluate=False),
    "said to add up": lambda: Case(net(lambda: [K.Dense(3, "softmax")], loss=focal), (x, labels)),
    "shown by a layer": lambda: Case(net(lambda: dense(Shared())), own="mean"),
    "validated": lambda: Case(
        net(metrics=["mae"]),
        fit={"validation_data": (x[:19], y[:19]), "validation_batch_size": 6},
        evaluate=False,
    ),
}
# Others are in ``test_equal_to_one_device``, as accumulation, scaled losses and XLA are.
OPTIMIZERS = (
    *(O.Adadelta, O.Adafactor, O.Adagrad, O.Adamax, O.Ftrl, O.Lion, O.Nadam, O.RMSprop),
    *([O.Muon] if hasattr(O, "Muon") else ()),  # Keras 3.8 has none
)
CASES |= {
    f"by {kind.__name__}": lambda kind=kind: Case(
        net(optimizer=lambda: kind(0.01, weight_decay=0.1))
    )
    for kind in OPTIMIZERS
}
FAST = ("metrics", "one example left")
SLOW = [name for name in CASES if name not in FAST]
# Those draw random numbers, round to 16 bits, are read once, or train a bias of which nothing depends.
NOT_COMPARED = ("dropout", "augmentation", "a_vae", "a_gan", "a_generator")
NOT_COMPARED += ("a_scaled_loss_in_float16", "batch_normalization_of_the_whole_batch")


def cases(*names):
    return compared({name: CASES[name]() for name in names})


@pytest.mark.parametrize(
    "names", [FAST, *(pytest.param(SLOW[n::2], marks=pytest.mark.slow) for n in range(2))]
)
def test_the_weights_and_the_numbers_shown_are_those_of_one_device(replicas, names):
    check(replicas(cases, *names))


def right_models(*names):
    """Compare the models that the proof is to find equal, as ``benchmarks`` has them."""
    right = importlib.import_module("benchmarks.models_to_prove").RIGHT
    names = names or [each for each in right if each not in NOT_COMPARED]

    def case(make, declared):
        def build():
            keras.utils.set_random_seed(0)
            model, given = make()
            model.jit_compile = False
            object.__setattr__(model, "given", given)
            return model

        return Case(build, own=declared)

    return compared({name: case(*right[name]) for name in names}, run=fitted)


def fitted(model, case):
    arrays = {name: model.given.get(name) for name in ("x", "y", "sample_weight")}
    if isinstance(arrays["x"], np.ndarray):  # a last batch that does not divide
        arrays = keras.tree.map_structure(lambda v: None if v is None else v[:61], arrays)
    shown = model.fit(**model.given | arrays, epochs=2, verbose=0).history.values()
    return model.get_weights(), [np.asarray(each, "float64").ravel() for each in shown]


FAST_MODELS = ("contrastive_loss", "own_step_of_a_mean", "own_step_of_a_sum")


@pytest.mark.parametrize("names", [FAST_MODELS, pytest.param((), marks=pytest.mark.slow)])
def test_models_that_are_proven_equal_are_so_by_their_weights(replicas, names):
    check(replicas(right_models, *names))


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
    changed = [name for name in changed if name != "__annotations__"]  # made by reading it
    names = ("_compute_loss", "_losses_override")
    changed += [n for n in names if vars(model).get(n) is not instance.get(n)]
    return changed, "apply" in vars(model.optimizer), "update_state" in vars(model._loss_tracker)


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise ZeroDivisionError


def test_nothing_of_keras_or_tensorflow_stays_changed(replicas):
    assert replicas(changed_afterwards) == ([], False, False)
