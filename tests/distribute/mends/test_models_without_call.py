"""Models with parts, a ``train_step`` and no ``call``, as Keras's guides write a VAE and a GAN."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfopt
from tfopt.distribute.mends.models_without_call import probe

from .replicas import without

x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")


class Coder(keras.Model):
    def __init__(self, *first):
        super().__init__()
        self.augment = keras.Sequential([layers.Rescaling(0.5), layers.Dropout(0.0)])
        self.encoder = keras.Sequential([*first, layers.Dense(3, "tanh")])
        self.decoder = keras.Sequential([keras.Input((3,)), layers.Dense(4)])
        self.mse = keras.losses.MeanSquaredError()

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.mse(data, self.decoder(self.encoder(self.augment(data))))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"mse": loss}

    def test_step(self, data):
        return {"mse": self.mse(data, self.decoder(self.encoder(data)))}


def made(*first):
    keras.utils.set_random_seed(0)
    model = Coder(*first)
    model.compile(keras.optimizers.Adam(0.1))
    return model


def trained(model):
    model.fit(x, batch_size=16, shuffle=False, verbose=0, validation_data=(x,))
    return model.encoder.get_weights() + model.decoder.get_weights()


def told(train, model):
    """Return the error that a training ends with."""
    try:
        train(model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def gap(one, other):
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def unmended():
    without("models_without_call")
    with tfopt.distribute(logical_cpus=2) as scope:
        models = made(keras.Input((4,))), siamese()
    return probe(scope.strategy), told(trained, models[0]), told(fitted, models[1])


@pytest.mark.slow
def test_without_the_mend_they_fail(alone):
    found, without_call, called_by_parts = alone(unmended)
    assert found is True
    assert "Unable to automatically build the model" in without_call
    assert "but it received 1 input tensors" in called_by_parts


def coders():
    with tfopt.distribute(logical_cpus=2) as scope:
        several, unbuilt = made(keras.Input((4,))), made()
    alone = made(keras.Input((4,)))
    return probe(scope.strategy), told(trained, unbuilt), gap(trained(several), trained(alone))


def test_they_train_as_on_one_device_and_need_built_parts(replicas):
    found, refused, apart = replicas(coders)
    assert found is False
    assert apart < 1e-5
    assert "Coder has no call(), and parts of it are not built yet." in refused
    assert "Dense" in refused


def triplets():
    return tf.data.Dataset.from_tensor_slices((x, x[::-1].copy(), x + 1)).batch(16)


class Distances(layers.Layer):
    def call(self, one, near, far):
        return ops.sum((one - near) ** 2, -1), ops.sum((one - far) ** 2, -1)


class Siamese(keras.Model):
    def __init__(self, network):
        super().__init__()
        self.network = network
        self.shown = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        return self.network(inputs)

    def loss_of(self, data):
        near, far = self.network(data)
        return ops.maximum(near - far + 0.5, 0.0)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(data)
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.shown.update_state(loss)
        return {"loss": self.shown.result()}

    def test_step(self, data):
        self.shown.update_state(self.loss_of(data))
        return {"loss": self.shown.result()}

    @property
    def metrics(self):
        return [self.shown]


class TrainedByKeras(Siamese):
    train_step = keras.Model.train_step


class Late(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner, self.apart = layers.Dense(3), Distances()

    def call(self, inputs):
        one, near, far = inputs
        return self.apart(*map(self.inner, (one, near, far)))


def network():
    coder = keras.Sequential([keras.Input((4,)), layers.Dense(3, "tanh")])
    inputs = [keras.Input((4,)) for _ in range(3)]
    return keras.Model(inputs, Distances()(*map(coder, inputs)))


def siamese(kind=Siamese, network=network):
    keras.utils.set_random_seed(0)
    model = kind(network())
    model.compile(keras.optimizers.Adam(0.1))
    return model


def fitted(model):
    data = triplets()
    history = model.fit(data, epochs=2, verbose=0, validation_data=data.take(2))
    shown = [history.history[name] for name in ("loss", "val_loss")]
    return [*model.get_weights(), np.asarray(shown)]


def calling_parts():
    with tfopt.distribute(logical_cpus=2):
        several, unbuilt, by_keras = siamese(), siamese(Siamese, Late), siamese(TrainedByKeras)
    return told(fitted, unbuilt), told(fitted, by_keras), gap(fitted(several), fitted(siamese()))


def test_one_whose_train_step_calls_its_parts_is_not_called_with_what_call_does_not_take(replicas):
    unbuilt, by_keras, apart = replicas(calling_parts)
    assert apart < 1e-5
    # What Keras itself calls with the batch, or has no weights yet, is told as before.
    assert "but it received 1 input tensors" in by_keras
    assert "Unable to automatically build the model" in unbuilt
