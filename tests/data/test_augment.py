"""Augmentation in the input and in the model: training alone sees it; refusals."""

import sys
import types

import keras
import numpy as np
import pytest

import tfopt
from tfopt import Data, Job, Pipeline, chain, run
from tfopt.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.random((64, 8, 8, 3), dtype="float32")
Y = np.arange(64) % 2


def layers():
    return [
        keras.layers.RandomFlip("horizontal", seed=1),
        keras.layers.RandomBrightness(0.2, value_range=(0, 1), seed=2),
    ]


@pytest.fixture(autouse=True)
def named(monkeypatch):
    """The functions under a name that a chain can hold."""
    module = types.ModuleType("augmenting")
    module.layers = layers
    module.scaling = lambda: keras.layers.Rescaling(1 / 255)
    monkeypatch.setitem(sys.modules, "augmenting", module)


def a_job():
    return Job(
        build=lambda: keras.Sequential(
            [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2, "softmax")]
        ),
        data=lambda: Data(train=(X, Y), test=(X, Y)),
        compile=lambda: {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        batch_size=16,
        epochs=2,
    )


def test_the_input_is_augmented_anew_in_every_epoch_and_labels_stay():
    data = tfopt.pipeline((X, np.arange(64)), batch_size=16, augment=layers)
    first, second = [
        {int(n): image for x, y in data for image, n in zip(x, y, strict=True)} for _ in range(2)
    ]
    assert set(first) == set(second) == set(range(64))
    assert sum(np.allclose(first[n], X[n]) for n in first) < 8
    assert sum(np.allclose(first[n], second[n]) for n in first) < 8


@pytest.mark.parametrize("where", ["input", "model"])
def test_a_chain_augments_and_neither_evaluation_nor_the_saved_model_does(where, tmp_path):
    step = Pipeline(augment="augmenting:layers", augment_in=where)
    outcome = run(a_job(), chain(step))
    ((_, effect),) = outcome.effects
    assert "RandomFlip, RandomBrightness" in effect.note
    model = outcome.model
    assert len(model.layers) == (3 if where == "model" else 2)
    one = model.predict(X, verbose=0)
    np.testing.assert_array_equal(one, model.predict(X, verbose=0))
    inner = model.layers[-1] if where == "model" else model
    np.testing.assert_allclose(one, inner.predict(X, verbose=0), rtol=1e-5)
    outcome.save(tmp_path)
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(X, verbose=0), one)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tfopt.pipeline((X, Y), augment=keras.layers.Rescaling(2.0)), "outside training"),
        (lambda: tfopt.pipeline((X, Y), augment=lambda: "flip"), "not a Keras layer"),
        (lambda: tfopt.pipeline((X, Y), augment=keras.layers.MixUp()), "mixes the labels too"),
        (lambda: Pipeline(augment=layers), "must be the name of a function"),
        (lambda: Pipeline(augment="augmenting:layers", augment_in="device"), "augment_in"),
        (
            lambda: run(a_job(), chain(Pipeline(augment="augmenting:scaling"))),
            "outside training",
        ),
    ],
)
def test_what_cannot_augment_is_refused(call, said):
    with pytest.raises(UserError, match=said):
        call()


def test_a_model_of_several_inputs_is_refused_in_the_model():
    def build():
        a, b = keras.Input((2,)), keras.Input((2,))
        return keras.Model([a, b], keras.layers.Dense(1)(keras.layers.Concatenate()([a, b])))

    two = np.ones((8, 2), "float32")
    job = a_job().with_(
        build=build,
        data=lambda: Data(train=((two, two), np.ones(8))),
        compile=lambda: {"optimizer": "sgd", "loss": "mse"},
    )
    with pytest.raises(UserError, match="one input"):
        run(job, Pipeline(augment="augmenting:layers", augment_in="model"))
