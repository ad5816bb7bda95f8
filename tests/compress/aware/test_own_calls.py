"""Layers whose ``call`` is a user's own: what Keras's attributes say of a result is not asked."""

import keras
import numpy as np
import pytest
from keras import layers

import tfopt

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


class Shifted(layers.ReLU):
    def call(self, x):
        return super().call(x) - 1.0


class Signed(layers.Softmax):
    def call(self, x):
        return 3.0 * super().call(x) - 1.0


class Elu(layers.Layer):
    """With a setting of its own for Keras's function."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.activation = keras.activations.elu

    def call(self, x):
        return self.activation(x, alpha=0.3)


class Looked(layers.Layer):
    """Whose activation cannot be set."""

    @property
    def activation(self):
        return keras.activations.elu

    def call(self, x):
        return self.activation(x)


LAYERS = {
    "in the middle": lambda: FeedForward(16),
    "softplus in the middle": lambda: FeedForward(16, "softplus"),
    "not last": lambda: Doubled(16, "relu"),
    "sigmoid not last": lambda: Doubled(16, "sigmoid"),
    "a ReLU": Shifted,
    "a softmax": Signed,
    "with a setting": Elu,
    "not to be set": Looked,
}


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_of_a_result_is_cut_off(name):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16,))
    hidden = LAYERS[name]()(layers.Dense(16)(inputs))
    model = keras.Model(inputs, [hidden, layers.Dense(4)(hidden)])
    plain = model(X, training=False)[0].numpy()
    tfopt.quantize_aware(model)
    for _ in range(3):
        model(X, training=True)
    trained = model(X, training=False)[0].numpy()
    step = np.ptp(plain) / 255
    assert abs(trained.min() - plain.min()) < 6 * step
    assert abs(trained.max() - plain.max()) < 6 * step
    served = tfopt.quantize(model, representative=X).predict(X)[0]
    assert np.abs(served - trained).max() < 8 * step
