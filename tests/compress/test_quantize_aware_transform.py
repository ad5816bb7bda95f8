"""The transform: training in integers' values, a plain model, a LiteRT file."""

import keras
import numpy as np
import pytest
from digits import small_digits
from int8_kernels import int8_kernels

from tfopt import Data, Job, chain, run
from tfopt.compress.prune import Prune
from tfopt.compress.quantize_aware import QuantizeAware

X, Y = small_digits(1500)


def build():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dense(10, "softmax", name="out"),
        ]
    )


def job(**settings):
    return Job(
        build=build,
        data=lambda: Data(train=(X[:1000], Y[:1000]), test=(X[1000:], Y[1000:])),
        compile=lambda: {
            "optimizer": keras.optimizers.Adam(0.005),
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
            "jit_compile": False,
        },
        batch_size=32,
        epochs=3,
        **settings,
    )


def test_the_file_is_measured_and_the_model_is_plain_again():
    outcome = run(job(), QuantizeAware(begin=0.2))
    (artefact,) = outcome.artefacts
    assert artefact.filename == "model_qat_int8.tflite"
    assert artefact.metrics["argmax_agreement"] > 0.98
    assert artefact.metrics["test_accuracy"] == pytest.approx(
        outcome.evaluation["accuracy"], abs=0.02
    )
    assert type(outcome.model) is keras.Sequential
    ((_, effect),) = outcome.effects
    assert effect.acted
    assert "2 layers with rounded kernels" in effect.note
    assert "every operator computes with integers" in effect.note


def test_layers_not_chosen_are_told():
    outcome = run(job().with_(epochs=1), QuantizeAware(layers="^conv", freeze_batchnorm=None))
    assert "left alone: " in outcome.effects[0][1].note


@pytest.mark.parametrize("order", [1, -1])
def test_the_file_is_made_of_masked_weights_whatever_a_callback_put_back(order):
    class PutsBack(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            for variable in self.model.trainable_variables:
                variable.assign(variable + 0.01)

    steps = chain(*(Prune(0.5), QuantizeAware())[::order])
    outcome = run(job(callbacks=(PutsBack,)).with_(epochs=1), steps)
    assert np.mean(outcome.model.get_layer("out").kernel.numpy() == 0) >= 0.49
    (artefact,) = outcome.artefacts
    conv, out = 9 * 8, 6 * 6 * 8 * 10
    for values in int8_kernels(artefact.content, (conv, out)).values():
        assert np.mean(values == 0) >= 0.49
