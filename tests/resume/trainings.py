"""Small trainings that break off at a chosen batch, and go on; shared by the tests of resume."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 6)).astype("float32")
Y = np.sin(X.sum(axis=1, keepdims=True)).astype("float32")


class Crash(Exception):
    """Stands for whatever ends a training from outside."""


class BreaksOff(keras.callbacks.Callback):
    """Raises after a batch, counted from the one that its fit begins with; or at an epoch's end,
    when each of its batches has been trained and saved, and the epoch has not."""

    def __init__(self, batch):
        super().__init__()
        self.left = batch

    def ends(self):
        raise Crash

    def on_train_batch_end(self, batch, logs=None):
        if self.left != "epoch end":
            self.left -= 1
        if self.left == 0:
            self.ends()

    def on_epoch_end(self, epoch, logs=None):
        if self.left == "epoch end":
            self.ends()

    def get_state(self):
        """Nothing goes on from one fit to the next."""

    def set_state(self, state):
        assert state is None


def network(*middle):
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "tanh"), *middle, keras.layers.Dense(1)]
    )


def compiled(optimizer=None, *middle, **settings):
    model = network(*middle)
    # Compiled by XLA, most of a test would be compilation.
    settings.setdefault("jit_compile", False)
    model.compile(optimizer or keras.optimizers.Adam(0.02), "mse", **settings)
    return model


def dataset(seed=3, batch=8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=seed).batch(batch)


def fit(make, folder=None, *, breaks=None, epochs=3, callbacks=(), **asked):
    """One training as a script of its own would do it: ``make`` returns a model and fit's input."""
    keras.utils.set_random_seed(5)
    model, settings = make()
    if isinstance(settings["x"], tf.data.Dataset):
        settings.setdefault("shuffle", False)  # Keras warns of its own default
    own = [*callbacks, *settings.pop("callbacks", ())]
    if breaks:
        own.append(BreaksOff(breaks))
    if folder is not None:
        own.insert(0, tfopt.resume(folder, **{"every_steps": 1, **asked}))
    history = model.fit(**settings, epochs=epochs, verbose=0, callbacks=own)
    return model, history


def went_on(make, folder, *, breaks, **asked):
    """Breaks off once at each of these places, and then trains to the end."""
    for batch in breaks:
        with pytest.raises(Crash):
            fit(make, folder, breaks=batch, **asked)
    return fit(make, folder, **asked)


def assert_goes_on(make, folder, breaks=(8,), epochs=2):
    """The training that broke off ends as the one that never did; returns both."""
    expected = fit(make, epochs=epochs)
    found = went_on(make, folder, breaks=breaks, epochs=epochs)
    assert_equal(found, expected)
    return found, expected


def state(model):
    return values([*model.variables, *(model.optimizer.variables if model.optimizer else ())])


def values(variables):
    return [np.asarray(each.numpy()) for each in variables]


def assert_same(values, others):
    for one, other in zip(values, others, strict=True):
        np.testing.assert_array_equal(one, other)


def assert_equal(found, expected):
    """The same weights, optimizer and history, bit for bit."""
    assert_same(state(found[0]), state(expected[0]))
    assert found[1].history == expected[1].history
    assert found[1].epoch == expected[1].epoch
