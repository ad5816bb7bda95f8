"""Compare trainings on several logical CPU devices with one device; run in another process.

69 examples in batches of 16 leave a last batch of 5.
"""

import keras
import numpy as np

import tfopt
from tfopt.distribute.mends import repairs_roster as roster

K, O, L = keras.layers, keras.optimizers, keras.losses  # noqa: E741
rng = np.random.default_rng(0)
x = (1 + rng.normal(size=(69, 6))).astype("float32")
y = rng.normal(size=(69, 3)).astype("float32")
even = (x[:64], y[:64])


def without(*names):
    """Leave mends out, so that a test can show what they are for; in a process of its own."""
    there = {each.module.rpartition(".")[2] for each in roster.REPAIRS}
    assert set(names) <= there
    roster.REPAIRS = tuple(
        each for each in roster.REPAIRS if each.module.rpartition(".")[2] not in names
    )


def dense(*between):
    return [K.Dense(8, "tanh"), *between, K.Dense(3)]


def built(layers, optimizer, loss="mse", inputs=6, **compiled):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((inputs,)), *layers()])
    model.compile(optimizer(), loss, **{"jit_compile": False, **compiled})
    return model


def trained(model, data, **fitted):
    """Return the weights and the history after two epochs."""
    how = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(*data, **how, **fitted)
    return model.get_weights(), history.history


def largest(one, other):
    """Return the largest difference, relative where a number is above 1; NaN where one is NaN."""
    pairs = [(np.asarray(a), b) for a, b in zip(one, other, strict=True)]
    # Not Python's max, which passes over what is no number.
    return float(np.max([(np.abs(a - b) / np.maximum(1, np.abs(a))).max() for a, b in pairs]))


def gaps(cases, count=2, built=built):
    """Return for each case the differences of its weights and of its history."""
    with tfopt.distribute(logical_cpus=count):
        several = {name: built(*case[0], **case[1]) for name, case in cases.items()}
    found = {}
    for name, (made, compiled, data, fitted) in cases.items():
        ours, told = trained(several[name], data, **fitted)
        plain, wanted = trained(built(*made, **{**compiled, "jit_compile": False}), data, **fitted)
        found[name] = [largest(plain, ours), largest(wanted.values(), told.values())]
    return found
