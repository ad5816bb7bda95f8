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


class Doubled(layers.Dense):
    def call(self, x):
        return super().call(x) * 2.0 - 1.0


class Signed(layers.Softmax):
    def call(self, x):
        return 3.0 * super().call(x) - 1.0


LAYERS = {
    "in_the_middle": lambda: FeedForward(16),
    "not_last": lambda: Doubled(16, "relu"),
    "a_softmax": Signed,
}


def body(name):
    return lambda x: LAYERS[name]()(layers.Dense(16)(x))


def test_nothing_of_a_result_is_cut_off():
    file = OneFile({name: body(name) for name in LAYERS}, X)
    after = file.trained_aware(batches=1)
    for name in LAYERS:
        plain, trained = file.wanted[name], after[name]
        step = np.ptp(plain) / 255
        assert abs(trained.min() - plain.min()) < 6 * step, name
        assert abs(trained.max() - plain.max()) < 6 * step, name
