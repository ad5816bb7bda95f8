"""Layers whose ``call`` is a user's own: what Keras's attributes say of a result is not asked."""

import keras
import numpy as np
from keras import layers
from one_file import OneFile

RNG = np.random.default_rng(0)
X = RNG.normal(size=(128, 16)).astype("float32")


@keras.saving.register_keras_serializable("own_calls")
class FeedForward(layers.Layer):
    """As in any transformer written by hand: the activation is in the middle."""

    def __init__(self, units, activation="relu", **settings):
        super().__init__(**settings)
        self.activation = keras.activations.get(activation)
        self.up, self.down = layers.Dense(32), layers.Dense(units)

    def call(self, x):
        return self.down(self.activation(self.up(x)))


def test_nothing_of_a_result_is_cut_off():
    file = OneFile({"own": lambda x: FeedForward(16)(layers.Dense(16)(x))}, X)
    after, plain = file.trained_aware(batches=1)["own"], file.wanted["own"]
    step = np.ptp(plain) / 255
    assert abs(after.min() - plain.min()) < 6 * step
    assert abs(after.max() - plain.max()) < 6 * step
