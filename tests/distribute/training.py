"""Compare trainings on several logical CPU devices with one device; run in another process.

69 examples in batches of 16 leave a last batch of 5.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

import tfopt
from tfopt.keras_internals import flat_logs

K, O, L = keras.layers, keras.optimizers, keras.losses  # noqa: E741
rng = np.random.default_rng(0)
x = (1 + rng.normal(size=(69, 6))).astype("float32")
y = rng.normal(size=(69, 3)).astype("float32")
labels = rng.integers(0, 3, size=69)
HOW = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}


@dataclass(frozen=True)
class Case:
    """A model, its data, and what ``fit`` is given; ``own`` declares how its own losses add up."""

    build: Callable[[], Any]
    data: tuple = (x, y)
    own: str | None = None
    fit: dict = field(default_factory=dict)
    evaluate: bool = True


def dense(*between):
    return [K.Dense(8, "tanh"), *between, K.Dense(3)]


def net(layers=dense, optimizer=O.SGD, loss="mse", inputs=(6,), dtype=None, **compiled):
    """Return a function that builds and compiles a small net, always with the same weights.

    What holds variables, such as metrics, is given as a function that makes it.
    """

    def build():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input(inputs, dtype=dtype), *layers()])
        made = {key: each() if callable(each) else each for key, each in compiled.items()}
        model.compile(optimizer(), loss, **{"jit_compile": False, **made})
        return model

    return build


def trained(model, case):
    """Return the weights and all numbers that fit and evaluate show."""
    given = dict(zip(("x", "y", "sample_weight"), case.data, strict=False))
    shown = list(model.fit(**given, **(HOW | case.fit)).history.values())
    if case.evaluate:
        how = {"batch_size": (HOW | case.fit)["batch_size"], "verbose": 0, "return_dict": True}
        shown += [[value] for value in flat_logs(model.evaluate(**given, **how)).values()]
    return model.get_weights(), [np.asarray(each, "float64").ravel() for each in shown]


def largest(one, other):
    """Return the largest difference, relative where a number is above 1; NaN where one is NaN."""
    pairs = [(np.asarray(a), b) for a, b in zip(one, other, strict=True)]
    # Not Python's max, which passes over what is no number.
    gaps = [np.abs(a - b) / np.maximum(1, np.abs(a)) for a, b in pairs if a.size]
    return float(np.max([gap.max() for gap in gaps]))


def compared(cases, count=2, run=trained):
    """Return for each case the largest difference of a weight and of a number shown."""
    several = {}
    for name, case in cases.items():
        with tfopt.distribute(logical_cpus=count, own_losses=case.own, verify=False):
            several[name] = case.build()
    found = {}
    for name, case in cases.items():
        (weights, shown), (wanted, expected) = run(several[name], case), run(case.build(), case)
        found[name] = largest(wanted, weights), largest(expected, shown)
    return found


def check(found, weights=1e-5, shown=2e-5):
    """Assert that all differences are those of rounding."""
    within = {name: one < weights and other < shown for name, (one, other) in found.items()}
    assert all(within.values()), found


def error_of(action, *given, **named):
    """Return the text of the UserError that a call ends with; None where it ends well."""
    try:
        action(*given, **named)
    except tfopt.UserError as error:
        return str(error)
