"""A train_step of Keras's guide trains and shows what one device does; what is refused.

Steps with losses of a user's own, such as a GAN's, are among the models of ``test_step``.
"""

import keras
import pytest
import tensorflow as tf
from keras import ops

import tfopt

from .training import Case, K, O, check, compared, dense, error_of, largest, net, x, y

classes = (y > 0).astype("float32")


def made(kind, optimizer=lambda: O.SGD(0.05), metrics=(), **compiled):
    def build():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6,))
        model = kind(inputs, K.Dense(3)(K.Dense(8, "tanh", kernel_regularizer="l2")(inputs)))
        how = {"metrics": [each() for each in metrics] or None, "jit_compile": False, **compiled}
        model.compile(optimizer(), "mse", **how)
        return model

    return build


class Guide(keras.Model):
    """Keras's guide "Customizing what happens in fit"; it tests by a step of its own, too."""

    def shown(self, loss, y, y_pred):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        own = {"odd": ops.mean(ops.abs(y - y_pred))}
        return {metric.name: metric.result() for metric in self.metrics} | own

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
            taken = self.optimizer.scale_loss(loss)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(taken, weights), weights)
        return self.shown(loss, y, y_pred)

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        return self.shown(self.compute_loss(y=y, y_pred=y_pred), y, y_pred)


METRICS = (keras.metrics.MeanAbsoluteError, keras.metrics.AUC, keras.metrics.F1Score)


def guided(**how):
    return made(Guide, metrics=METRICS, **how)


def guide(how):
    """Compare it on data that leave one example over."""
    scaled = guided(optimizer=lambda: O.LossScaleOptimizer(O.SGD(0.05, clipnorm=0.1)), **how)
    return compared({"guide": Case(scaled, (x[:17], classes[:17]), "mean")})


WAYS = {"steps_per_execution": 2}, pytest.param({"jit_compile": True}, marks=pytest.mark.slow)


@pytest.mark.parametrize("how", WAYS)
def test_it_trains_and_shows_what_one_device_does(replicas, how):
    check(replicas(guide, how))


def elsewhere():
    with tfopt.distribute(logical_cpus=2, own_losses="mean", verify=False):
        outside = O.Adam(0.05)

        class Elsewhere(keras.Model):
            def train_step(self, data):
                with tf.GradientTape() as tape:
                    loss = ops.mean(ops.square(data[1] - self(data[0])))
                weights = self.trainable_variables
                outside.apply(tape.gradient(loss, weights), weights)
                return {"loss": loss}

        model = made(Elsewhere)()
        outside.build(model.trainable_variables)
    before = model.get_weights()
    text = error_of(model.fit, x, y, batch_size=16, verbose=0)
    return text, largest(before, model.get_weights())


def test_an_optimizer_that_the_model_does_not_have_is_refused(replicas):
    text, moved = replicas(elsewhere)
    assert "applies no optimizer of the model" in text
    assert moved == 0


class Adds(K.Layer):
    def call(self, x):
        self.add_loss(ops.mean(ops.square(x)))
        return x


def undeclared():
    with tfopt.distribute(logical_cpus=2, verify=False):
        model, shows, adds = guided()(), guided()(), net(lambda: dense(Adds()))()
    shows.train_step = lambda data: keras.Model.train_step(shows, data)
    before = model.get_weights()
    return (
        error_of(model.fit, x, classes, batch_size=16, verbose=0),
        error_of(shows.evaluate, x, classes, batch_size=16, verbose=0),
        error_of(adds.fit, x, y, batch_size=16, verbose=0),
        largest(before, model.get_weights()),
    )


def test_one_that_is_not_declared_is_refused_before_a_weight_moves(replicas):
    trains, shows, adds, moved = replicas(undeclared)
    assert trains.startswith("The train_step of Guide ")
    assert 'own_losses="mean"' in trains
    assert "The test_step of Guide returns 'odd'" in shows
    assert "adds a loss" in adds
    assert moved == 0
