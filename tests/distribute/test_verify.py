"""The proof before the first epoch: what it finds, and that it leaves everything as it was."""

import importlib
import logging.handlers
import random
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt.distribute.models import distributed
from tfopt.distribute.proof_data import read_batches
from tfopt.distribute.verify import verify
from tfopt.errors import UserError
from tfopt.resume.variables import values_of, variables_of

K = keras.layers
_draw = np.random.RandomState(0)
x, y = _draw.randn(69, 6).astype("float32"), _draw.randn(69, 3).astype("float32")
BATCH = {"batch_size": 16, "shuffle": False, "verbose": 0}


class Own(keras.Sequential):
    def own_loss(self, y, p):
        return keras.ops.mean(keras.ops.square(y - p))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.own_loss(y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"own": loss}


class DrawsByPython(Own):
    def own_loss(self, y, p):
        return super().own_loss(y, p) * np.random.rand()


def made(kind=keras.Sequential, declared=None, between=(), verify=True, rate=0.01, **compiled):
    """Return a model on two replicas; Adam, whose variables are put back as well."""
    keras.utils.set_random_seed(0)
    with tfopt.distribute(logical_cpus=2, own_losses=declared, verify=verify):
        layers = [K.Dense(8, "tanh"), *[each() for each in between], K.Dense(3)]
        model = kind([keras.Input((6,)), *layers])
        loss = None if issubclass(kind, Own) else "mse"
        model.compile(keras.optimizers.Adam(rate), loss, jit_compile=False, **compiled)
    return model


def verdict(model, **arguments):
    return str(verify(distributed(model).step, {"x": x, "y": y, **BATCH, **arguments}))


def proven_with_dropout():
    """Return the verdict of ``fit``, which does not warn of random numbers alone."""
    model = made(between=[lambda: K.Dropout(0.5)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model.fit(x, y, **BATCH)
    return str(distributed(model).proof)


def fitted_in_the_scope():
    with tfopt.distribute(logical_cpus=2):
        model = keras.Sequential([keras.Input((6,)), K.Dense(3)])
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, y, **BATCH)
    return str(distributed(model).proof)


def of_benchmarks(name):
    models = importlib.import_module("benchmarks.models_to_prove")
    make, declared = (models.RIGHT | models.FAULTS)[name]
    with tfopt.distribute(logical_cpus=2, own_losses=declared):
        model, given = make()
    return str(verify(distributed(model).step, given))


VERDICTS = {  # what is proven, and what is said of it
    "dropout": (proven_with_dropout, r"inconclusive: random numbers differ.*all else is equal"),
    "statistics": (
        lambda: verdict(made(between=[K.BatchNormalization])),
        r"inconclusive: 'batch_normalization\w*' normalize.*all else is equal",
    ),
    "in the scope": (fitted_in_the_scope, r"equal: 2 steps on 2 replicas"),
    "a VAE": (lambda: of_benchmarks("a_vae"), r"inconclusive: random.*all else is equal"),
    "a GAN": (lambda: of_benchmarks("a_gan"), r"inconclusive: random.*all else is equal"),
    "a wrong VAE": (lambda: of_benchmarks("a_vae_declared_a_sum"), r"different "),
    "local": (lambda: of_benchmarks("a_sum_divided_by_the_local_batch"), r"different "),
    "wrong": (lambda: verdict(made(Own, "sum")), r"different .*a sum declared a mean"),
    "chance": (
        lambda: verdict(made(DrawsByPython, "mean", run_eagerly=True)),
        r"inconclusive: .*depend on the seed.*not proven",
    ),
    "ragged": (
        lambda: verdict(made(), x=tf.RaggedTensor.from_tensor(x), y=None),
        r"inconclusive: .*RaggedTensor",
    ),
}
FAST, SLOW = tuple(VERDICTS)[:2], tuple(VERDICTS)[2:]


def verdicts(*names):
    return {name: VERDICTS[name][0]() for name in names}


@pytest.mark.parametrize("names", [FAST, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_right_models_are_equal_and_wrong_ones_are_not(replicas, names):
    for name, told in replicas(verdicts, *names).items():
        assert re.match(VERDICTS[name][1], told), (name, told)


@pytest.mark.parametrize(
    ("rows", "replicas", "strides", "sizes"),
    [
        (64, 2, 1, [31, 32]),
        (70, 4, 1, [15, 16]),
        (7, 2, 1, [3, 4]),
        (2, 2, 1, [2, 2]),
        (64, 2, 2, [32, 32]),
        (7, 2, 2, [4, 4]),
    ],
)
def test_its_first_batch_is_uneven_but_where_tensorflow_may_crash(rows, replicas, strides, sizes):
    """On a CPU, in the gradient of a 1x1 convolution with strides, in parts of an odd size."""
    model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Conv2D(8, 1, strides)])
    given = {"x": np.zeros((rows, 4, 4, 1)), "y": np.zeros(rows), "batch_size": rows}
    batches = read_batches(given, 2, replicas, model).all
    assert [len(tf.nest.flatten(batch)[0]) for batch in batches] == sizes


def everything(model):
    there = [[c.tolist() for c in values_of(each.variable)] for each in variables_of(model)]
    return [there, random.random(), np.random.rand(), tf.random.uniform([]).numpy().item()]


def before_and_after():
    seen = []
    for how in ({}, {"verify": False}):
        model = made(between=[lambda: K.Dropout(0.5)], metrics=["mae"], **how)
        model.build()
        keras.utils.set_random_seed(3)
        if not how:
            verify(distributed(model).step, {"x": x, "y": y, **BATCH})
        else:
            model._maybe_symbolic_build(data_batch=(tf.constant(x), tf.constant(y)))
        seen.append(everything(model))
    return seen


def test_everything_is_put_back(replicas):
    (variables, *drawn), (untouched, *then) = replicas(before_and_after)
    assert len(variables) == len(untouched) > 15
    assert variables == untouched
    assert drawn == then


def histories(name):
    """Return the losses of two epochs with the proof and without."""
    found = []
    for how in (True, False):
        model = made(verify=how, metrics=["mae"], between=[Decorated])
        keras.utils.set_random_seed(5)
        data, steps = globals()[name]()
        history = model.fit(data, epochs=2, steps_per_epoch=steps, verbose=0).history
        found.append(history["loss"])
    return found


class Decorated(K.Layer):
    """A layer whose ``tf.function`` would keep what was traced in a proof."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(3)

    @tf.function
    def call(self, x):
        return keras.random.dropout(x, 0.5, seed=self.seed_generator)


def generated():
    return (x_y for x_y in [(x[n : n + 7], y[n : n + 7]) for n in range(0, 56, 7)]), 4


def shuffled():
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(69, seed=1).batch(16), None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffled", "generated"])
def test_no_batch_is_lost_and_none_is_another(replicas, name):
    with_proof, without = replicas(histories, name)
    assert with_proof == without


def said_by_fit():
    heard = logging.handlers.BufferingHandler(100)
    log = logging.getLogger("tfopt")
    log.addHandler(heard)
    log.setLevel(logging.INFO)
    model = made()
    model.fit(x, y, **BATCH)
    model.fit(x, y, **BATCH)  # is not verified again
    log.removeHandler(heard)
    refused = made(Own, "sum")
    before = refused.get_weights()
    with pytest.raises(UserError, match="Nothing was trained") as error:
        refused.fit(x, y, **BATCH)
    same = all(map(np.array_equal, before, refused.get_weights()))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        made(DrawsByPython, "mean", run_eagerly=True).fit(x, y, **BATCH)
    told = [str(each.message) for each in warned if each.category is RuntimeWarning]
    return [each.getMessage() for each in heard.buffer], str(error.value), same, told


def test_fit_says_it_once_and_refuses_what_is_different(replicas):
    told, error, same, warned = replicas(said_by_fit)
    assert len(told) == 1
    assert "equal: 2 steps on 2 replicas" in told[0]
    assert same
    assert 'own_losses="mean"' in error
    assert "verify=False" in error
    assert len(warned) == 1
    assert "not proven" in warned[0]
