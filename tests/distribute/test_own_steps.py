"""A train_step of the user's own, declared a mean or a sum, trains and shows what one device does.

The models are those of Keras's guides and TensorFlow's tutorial, with noise taken from the data so
that one device can train the same.
"""

import keras
import pytest
import tensorflow as tf
from keras import ops

import tfopt

from .training import Case, K, L, O, check, compared, error_of, largest, x, y

classes = (y > 0).astype("float32")


def parts(inputs, *units, **kwargs):
    first = inner = keras.Input((inputs,))
    for each in units[:-1]:
        inner = K.Dense(each, "tanh", **kwargs)(inner)
    return first, K.Dense(units[-1], **kwargs)(inner)


def own_step(loss_of, optimizer=lambda: O.SGD(0.05), **compiled):
    """Return a function that makes a model which trains and shows this loss."""

    class Own(keras.Model):
        def train_step(self, data):
            inputs, wanted = data
            with tf.GradientTape() as tape:
                loss = loss_of(self, wanted, self(inputs, training=True))
                taken = self.optimizer.scale_loss(loss)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(taken, weights), weights)
            return {"own": ops.sum(loss)}

    def build():
        keras.utils.set_random_seed(0)
        model = Own(*parts(6, 8, 3, kernel_regularizer=keras.regularizers.L2(0.01)))
        model.compile(optimizer(), "mse", **{"jit_compile": False, **compiled})
        return model

    return build


def mean(model, wanted, given):
    return ops.mean(ops.square(wanted - given))


def of_keras(model, wanted, given):
    return L.MeanSquaredError()(wanted, given) + 0.3 * ops.mean(ops.sum(ops.abs(given), axis=1))


def by_keras(model, wanted, given):
    return model.compute_loss(None, wanted, given) - 0.1 * ops.mean(given)


class VAE(keras.Model):
    """It has parts, a tracker and no call()."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.Model(*parts(6, 8, 4)), keras.Model(*parts(2, 8, 6))
        self.shown = keras.metrics.Mean(name="loss")

    metrics = property(lambda self: [self.shown])

    def train_step(self, data):
        data, noise = data
        with tf.GradientTape() as tape:
            middle, log_var = ops.split(self.encoder(data), 2, axis=1)
            again = self.decoder(middle + ops.exp(0.5 * log_var) * noise[:, :2])
            kept = ops.mean(ops.sum(ops.square(data - again), axis=1))
            kl = -0.5 * (1 + log_var - ops.square(middle) - ops.exp(log_var))
            total = kept + ops.mean(ops.sum(kl, axis=1))
        grads = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.shown.update_state(total)
        return {"loss": self.shown.result()}


class GAN(keras.Model):
    """Wasserstein's, with a gradient penalty."""

    def __init__(self):
        super().__init__()
        self.d, self.g = keras.Model(*parts(6, 8, 1)), keras.Model(*parts(3, 8, 6))

    def call(self, data):
        return self.d(data)

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def penalty(self, real, fake):
        with tf.GradientTape() as tape:
            between = 0.7 * real + 0.3 * fake
            tape.watch(between)
            judged = self.d(between, training=True)
        grads = tape.gradient(judged, [between])[0]
        return tf.reduce_mean((tf.sqrt(tf.reduce_sum(tf.square(grads), axis=1)) - 1.0) ** 2)

    def train_step(self, data):
        real, noise = data
        with tf.GradientTape() as tape:
            fake = self.g(noise, training=True)
            told, made = self.d(real, training=True), self.d(fake, training=True)
            loss = tf.reduce_mean(made) - tf.reduce_mean(told) + 10.0 * self.penalty(real, fake)
        weights = self.d.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(self.d(self.g(noise, training=True), training=True))
        weights = self.g.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"g": loss}


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
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.shown(loss, y, y_pred)

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        return self.shown(self.compute_loss(y=y, y_pred=y_pred), y, y_pred)


def made(kind, *units, compile=lambda model: model.compile("sgd", "mse", jit_compile=False)):
    def build():
        keras.utils.set_random_seed(0)
        model = kind(*parts(6, *units)) if units else kind()
        compile(model)
        return model

    return build


def guided(**how):
    def compile(model):
        metrics = ["mae", keras.metrics.AUC(name="auc"), keras.metrics.F1Score(name="f1")]
        model.compile("sgd", "mse", metrics=metrics, jit_compile=False, **how)

    return made(Guide, 8, 3, compile=compile)


def case(build, own="mean", **how):
    return Case(build, own=own, evaluate=False, **how)


CASES = {
    "VAE": lambda: case(made(VAE, compile=lambda m: m.compile(O.SGD(0.05)))),
    "GAN": lambda: case(made(GAN, compile=lambda m: m.compile(O.SGD(0.05), O.SGD(0.1)))),
    "a mean": lambda: case(own_step(mean)),
    "by compute_loss": lambda: case(own_step(by_keras)),
    "several steps": lambda: case(own_step(of_keras, steps_per_execution=3)),
    "compiled": lambda: case(own_step(of_keras, jit_compile=True)),
    "scaled": lambda: case(
        own_step(of_keras, optimizer=lambda: O.LossScaleOptimizer(O.SGD(0.05, clipnorm=0.1)))
    ),
    "guide": lambda: Case(guided(), (x, classes), "mean"),
    "guide, one left": lambda: Case(guided(steps_per_execution=2), (x[:17], classes[:17]), "mean"),
    "eager": lambda: case(own_step(mean, run_eagerly=True), data=(x[:33], y[:33])),
}
FAST = ("VAE", "GAN")
SLOW = [name for name in CASES if name not in FAST]


def cases(*names):
    return compared({name: CASES[name]() for name in names})


@pytest.mark.parametrize("names", [FAST, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_they_train_and_show_what_one_device_does(replicas, names):
    check(replicas(cases, *names))


def elsewhere():
    with tfopt.distribute(logical_cpus=2, own_losses="mean", verify=False):
        outside = O.Adam(0.05)

        class Own(keras.Model):
            def train_step(self, data):
                with tf.GradientTape() as tape:
                    loss = ops.mean(ops.square(data[1] - self(data[0])))
                weights = self.trainable_variables
                outside.apply(tape.gradient(loss, weights), weights)
                return {"loss": loss}

        model = made(Own, 8, 3)()
        outside.build(model.trainable_variables)
    before = model.get_weights()
    text = error_of(model.fit, x, y, batch_size=16, verbose=0)
    return text, largest(before, model.get_weights())


def test_an_optimizer_that_the_model_does_not_have_is_refused(replicas):
    text, moved = replicas(elsewhere)
    assert "gives its gradients to no optimizer of the model's" in text
    assert moved == 0


def undeclared():
    with tfopt.distribute(logical_cpus=2, verify=False):
        model, shows = own_step(mean)(), guided()()
    shows.train_step = lambda data: keras.Model.train_step(shows, data)
    before = model.get_weights()
    return (
        error_of(model.fit, x, y, batch_size=16, verbose=0),
        error_of(shows.evaluate, x, classes, batch_size=16, verbose=0),
        largest(before, model.get_weights()),
    )


def test_one_that_is_not_declared_is_refused_before_a_weight_moves(replicas):
    trains, shows, moved = replicas(undeclared)
    assert trains.startswith("The train_step of Own ")
    assert 'own_losses="mean"' in trains
    assert "The test_step of Guide returns 'odd'" in shows
    assert moved == 0
