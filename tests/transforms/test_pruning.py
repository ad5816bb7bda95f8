"""Prune as a transform: validated when made, scheduled by the run, verified after it."""

import keras
import numpy as np
import pytest

from tfopt import Data, Job, run
from tfopt.compression.pruning import pruning_report
from tfopt.compression.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.errors import UserError
from tfopt.job import Facts
from tfopt.transforms.pruning import Prune

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 12)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def a_job(data=None, **settings):
    def build():
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((12,)),
                layers.Dense(16, "relu", name="hidden"),
                layers.BatchNormalization(name="norm"),
                layers.Dense(2, "softmax", name="out"),
            ]
        )

    return Job(
        build=build,
        data=data or (lambda: Data(train=(X, Y))),
        compile=lambda: {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "jit_compile": False,
        },
        **{"batch_size": 8, "epochs": 2, **settings},
    )


def facts(steps_per_epoch, epochs=1):
    return Facts(
        replicas=1,
        batch_size=8,
        tuned_batch_size=8,
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        seed=0,
    )


@pytest.mark.parametrize(
    "prune",
    [
        Prune(sparsity=0.8),
        Prune(sparsity=0.8, begin=0.5, end=1.0),
        Prune(sparsity=0.8, schedule="constant", frequency=3),
        Prune(sparsity=0.8, initial_sparsity=0.3, frequency=5),
    ],
    ids=repr,
)
def test_the_run_reaches_the_target_and_says_so(prune):
    outcome = run(prune.apply(a_job()))
    for row in pruning_report(outcome.model):
        if row.target is not None:
            assert abs(row.zeros - 0.8 * row.weights) <= 1
    ((transform, effect),) = outcome.effects
    assert transform is prune
    assert effect.acted
    end = round(prune.end * 24)
    assert f"80% of 224 weights in 2 kernels masked by step {end} of 24" in effect.note
    assert "left alone: norm (BatchNormalization has no kernel" in effect.note
    assert "80.4% zeros after training" in effect.note


def test_chosen_layers_only():
    outcome = run(Prune(sparsity=0.5, layers="^hidden$").apply(a_job()))
    reached = [row.sparsity for row in pruning_report(outcome.model)]
    assert reached == [pytest.approx(0.5, abs=0.02), 0, 0]
    assert "out/kernel (no mask: not chosen by prune())" in outcome.effects[0][1].note


def test_a_training_cut_short_is_told_as_a_target_missed():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    outcome = run(Prune(sparsity=0.8).apply(a_job()), callbacks=[Stop()])
    effect = outcome.effects[0][1]
    assert "the target was missed in hidden/kernel at" in effect.note


@pytest.mark.parametrize(
    ("prune", "steps", "expected"),
    [
        (Prune(0.8), 400, PolynomialSparsity(0.8, 0, 300, 15)),
        (Prune(0.8, begin=0.25, end=1.0), 400, PolynomialSparsity(0.8, 100, 400, 15)),
        (Prune(0.8, "constant", begin=0.1), 400, ConstantSparsity(0.8, 40, 300, 13)),
        (Prune(0.8, begin=0.9, end=1.0), 1, PolynomialSparsity(0.8, 0, 1, 1)),
    ],
)
def test_fractions_become_steps_of_the_run(prune, steps, expected):
    assert prune._schedule(steps) == expected


def test_a_training_of_unknown_length_is_refused():
    with pytest.raises(UserError, match="how long the training is"):
        Prune(sparsity=0.5).attach(keras.Sequential(), facts(None))


@pytest.mark.parametrize(
    "settings",
    [
        {"sparsity": 1.5},
        {"sparsity": -0.1},
        {"sparsity": "0.5"},
        {"sparsity": 0.5, "schedule": "cubic"},
        {"sparsity": 0.5, "initial_sparsity": 0.6},
        {"sparsity": 0.5, "schedule": "constant", "initial_sparsity": 0.2},
        {"sparsity": 0.5, "begin": 0.8, "end": 0.2},
        {"sparsity": 0.5, "begin": 0.5, "end": 0.5},
        {"sparsity": 0.5, "end": 1.5},
        {"sparsity": 0.5, "frequency": 0},
        {"sparsity": 0.5, "layers": "("},
        {"sparsity": 0.5, "layers": 3},
    ],
    ids=repr,
)
def test_a_bad_setting_fails_when_made(settings):
    with pytest.raises(UserError):
        Prune(**settings)
