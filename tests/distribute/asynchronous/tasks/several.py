"""A model with two optimizers, as in Keras's examples."""

import keras
import tensorflow as tf
from keras import layers, optimizers

LOSS = keras.losses.BinaryCrossentropy(from_logits=True)


def dense(units):
    return keras.Sequential([keras.Input((8,)), layers.Dense(units)])


class Adversaries(keras.Model):
    """A GAN as Keras's examples write it: no call(), nothing is built, compile() is its own."""

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = dense(8), dense(1)
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def train_step(self, data):
        real = data[0]
        ones, zeros = tf.ones((tf.shape(real)[0], 1)), tf.zeros((tf.shape(real)[0], 1))
        for _ in range(2):
            with tf.GradientTape() as tape:
                forged = self.discriminator(self.generator(real[::-1]))
                d_loss = LOSS(ones, self.discriminator(real)) + LOSS(zeros, forged)
            weights = self.discriminator.trainable_weights
            gradients = tape.gradient(d_loss, weights)
            self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = LOSS(ones, self.discriminator(self.generator(real[::-1])))
        weights = self.generator.trainable_weights
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


def adversaries():
    model = Adversaries()
    model.compile(optimizers.Adam(0.01, beta_1=0.5), optimizers.Adam(0.01, beta_1=0.5))
    model.d_optimizer.build(model.discriminator.trainable_variables)
    model.g_optimizer.build(model.generator.trainable_variables)
    return model
