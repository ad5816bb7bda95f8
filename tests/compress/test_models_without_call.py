"""Models that train others by a step of their own and are never called: GAN, VAE and the like."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt.errors import UserError

X = np.random.default_rng(0).normal(size=(32, 6)).astype("float32")


def encoder():
    inputs = keras.Input((6,))
    return keras.Model(inputs, layers.Dense(4)(layers.Dense(16, "relu")(inputs)), name="encoder")


def decoder():
    return keras.Sequential([keras.Input((4,)), layers.Dense(6)], name="decoder")


class Training(keras.Model):
    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self.decoder(self.encoder(x)) - x) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@keras.saving.register_keras_serializable("without_call")
class Made(Training):
    """It makes its models itself."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.encoder, self.decoder = encoder(), decoder()


def trained():
    model = Made()
    model.compile(keras.optimizers.Adam(), jit_compile=False)
    model.fit(X, verbose=0)
    assert not model.built
    return model


def zeros(model):
    return np.mean(model.encoder.layers[1].kernel.numpy() == 0)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
@pytest.mark.filterwarnings("ignore:You are saving a model that has not yet been built")
def test_what_is_held_stays_through_training_files_and_strip(tmp_path):
    model = trained()
    tfopt.prune(model, 0.5)
    model.fit(X, verbose=0)
    assert zeros(model) == 0.5
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.compile(keras.optimizers.Adam(), jit_compile=False)
    loaded.fit(X, verbose=0)
    assert zeros(loaded) == 0.5
    tfopt.strip(loaded)
    loaded.save(tmp_path / "plain.keras")
    plain = keras.models.load_model(tmp_path / "plain.keras")
    assert zeros(plain) == 0.5
    assert type(plain) is Made


@pytest.mark.parametrize(
    "refused", [tfopt.quantize_aware, lambda model: tfopt.quantize(model, calibration=X)]
)
def test_what_needs_a_call_says_to_give_the_models_inside(refused):
    with pytest.raises(UserError, match="if it only trains other models, pass those"):
        refused(trained())
