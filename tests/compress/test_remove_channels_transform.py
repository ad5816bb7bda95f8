"""RemoveChannels as a transform: a trained model, made smaller, trained on."""

import keras
import numpy as np

from tfopt import Data, Job, RemoveChannels, chain, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def trained_model():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(32, "relu", name="hidden"),
            layers.LayerNormalization(),
            layers.Dense(16, "relu", name="narrow"),
            layers.Dense(2, "softmax", name="out"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    model.fit(X, Y, verbose=0)
    return model


def test_a_trained_model_becomes_smaller_and_trains_on_with_a_new_optimizer():
    model = trained_model()
    job = Job.from_model(model, Data(train=(X, Y), test=(X, Y)), batch_size=16)
    outcome = run(job, chain(RemoveChannels(0.5)))
    assert outcome.model.get_layer("narrow").units == 8
    assert outcome.model.get_layer("hidden").units == 32
    assert int(outcome.model.optimizer.iterations) == 4
    assert model.get_layer("narrow").units == 16
    ((_, effect),) = outcome.effects
    assert "fewer channels in 1 group" in effect.note
    assert "computes statistics over channels" in effect.note
