"""Losses that a model's own code means over the batch: counted once, not once for each replica.

The models are those of Keras's guides and TensorFlow's tutorial, with noise taken from the data so
that one device can train the same. 69 examples in batches of 16 leave a last batch of 5.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import tfopt
from tfopt.distribute.mends.own_losses import probe

from .own_steps import gap
from .replicas import without

K, O, L = keras.layers, keras.optimizers, keras.losses  # noqa: E741
rng = np.random.default_rng(0)
x = rng.normal(size=(69, 6)).astype("float32")
y = (rng.normal(size=(69, 3)) > 0).astype("float32")


def sgd():
    return O.SGD(0.05)


def net(inputs, *units, **kwargs):
    i = keras.Input((inputs,))
    h = i
    for each in units[:-1]:
        h = K.Dense(each, "tanh", **kwargs)(h)
    return i, K.Dense(units[-1], **kwargs)(h)


def own_step(loss_of):
    class Own(keras.Model):
        def train_step(self, data):
            inputs, wanted = data
            with tf.GradientTape() as tape:
                loss = loss_of(self, wanted, self(inputs, training=True))
                taken = self.optimizer.scale_loss(loss)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(taken, weights), weights)
            return {"own": ops.mean(loss)}

    return Own


def own_loss(loss_of):
    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return loss_of(self, y, y_pred)

    return Own


def model_of(kind, loss="mse", optimizer=sgd, **compiled):
    def made():
        regularizer = keras.regularizers.L2(0.01)
        model = kind(*net(6, 8, 3, kernel_regularizer=regularizer))
        model.compile(optimizer(), loss, **{"jit_compile": False, **compiled})
        return model

    return made


mse = L.MeanSquaredError()


def mean(m, a, b):
    return ops.mean(ops.square(a - b))


def of_keras(m, a, b):
    return mse(a, b) + 0.3 * ops.mean(ops.sum(ops.abs(b), axis=1))


def regularized(m, a, b):
    return mse(a, b) + ops.sum(m.losses)


def summed(m, a, b):
    return ops.sum(ops.square(a - b)) / 16 + ops.mean(b)


def by_keras(m, a, b):
    return m.compute_loss(None, a, b) - 0.1 * ops.mean(b)


def averaged(m, a, b):
    each = ops.mean(ops.square(a - b), axis=1)
    return tf.nn.compute_average_loss(each, global_batch_size=16)


def each(m, a, b):
    return ops.mean(ops.square(a - b), axis=1) / 16


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = keras.Model(*net(6, 8, 4)), keras.Model(*net(2, 8, 6))
        self.shown = keras.metrics.Mean(name="loss")

    metrics = property(lambda self: [self.shown])

    def call(self, data):
        return self.decoder(self.encoder(data)[:, :2])

    def train_step(self, data):
        data, noise = data
        with tf.GradientTape() as tape:
            mean, log_var = ops.split(self.encoder(data), 2, axis=1)
            again = self.decoder(mean + ops.exp(0.5 * log_var) * noise[:, :2])
            kept = ops.mean(
                ops.sum(L.mean_squared_error(data[..., None], again[..., None]), axis=1)
            )
            kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            total = kept + ops.mean(ops.sum(kl, axis=1))
        grads = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.shown.update_state(total)
        return {"loss": self.shown.result()}


def vae():
    model = VAE()
    model.compile(sgd())
    return model


class GAN(keras.Model):
    def __init__(self, wasserstein):
        super().__init__()
        self.d, self.g = keras.Model(*net(6, 8, 1)), keras.Model(*net(3, 8, 6))
        self.wasserstein = wasserstein

    def call(self, data):
        return self.d(data)

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.bce = L.BinaryCrossentropy(from_logits=True)

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
            if self.wasserstein:
                loss = tf.reduce_mean(made) - tf.reduce_mean(told) + 10.0 * self.penalty(real, fake)
            else:
                loss = self.bce(tf.ones_like(told), told) + self.bce(tf.zeros_like(made), made)
        weights = self.d.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(self.d(self.g(noise, training=True), training=True))
        weights = self.g.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"g": loss}


def gan(wasserstein):
    model = GAN(wasserstein)
    model.compile(sgd(), O.SGD(0.1))
    return model


class Student(keras.Model):
    """Keras's distillation: a loss object and a mean of its own."""

    def train_step(self, data):
        inputs, wanted = data
        taught = self.teacher(inputs, training=False)
        with tf.GradientTape() as tape:
            own = self(inputs, training=True)
            loss = 0.1 * L.CategoricalCrossentropy(from_logits=True)(wanted, own)
            loss += (
                0.9
                * 9.0
                * tf.reduce_mean(
                    L.kl_divergence(tf.nn.softmax(taught / 3.0), tf.nn.softmax(own / 3.0))
                )
            )
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def student():
    model = Student(*net(6, 8, 3))
    model.teacher = keras.Model(*net(6, 8, 3))
    model.teacher.trainable = False
    model.compile(sgd())
    return model


def made(how):
    keras.utils.set_random_seed(0)
    return how()


def trained(model, inputs=x, wanted=y):
    model.fit(inputs, wanted, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def gaps(cases, count=2):
    with tfopt.distribute(logical_cpus=count):
        several = {name: made(how) for name, how in cases.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            name: gap(trained(made(how)), trained(several[name])) for name, how in cases.items()
        }


def own_mean(a, b):
    return ops.mean(ops.square(a - b))


CASES = {
    "VAE": vae,
    "Wasserstein GAN": lambda: gan(True),
    "student": student,
    "train_step": model_of(own_step(mean)),
    "compute_loss": model_of(own_loss(mean)),
    "mixed": model_of(own_step(of_keras)),
    "mixed compute_loss": model_of(own_loss(of_keras)),
    "Keras's and own": model_of(own_step(by_keras)),
    "regularized": model_of(own_step(regularized)),
    "sum and mean": model_of(own_step(summed)),
}


MORE = {
    "loss function": model_of(keras.Model, own_mean),
    "GAN": lambda: gan(False),
    "averaged": model_of(own_step(averaged)),
    "one value each": model_of(own_step(each)),
    "several steps": model_of(own_step(of_keras), steps_per_execution=3),
    "compiled": model_of(own_step(of_keras), jit_compile=True),
    "scaled": model_of(own_step(of_keras), optimizer=lambda: O.LossScaleOptimizer(sgd())),
    "clipped": model_of(own_step(of_keras), optimizer=lambda: O.SGD(0.05, clipnorm=0.1)),
}
FEW = (
    *("VAE", "Wasserstein GAN", "student", "train_step", "mixed compute_loss"),
    *("sum and mean", "averaged", "scaled"),
)


def unmended():
    without("own_losses")
    found = gaps(CASES)
    with tfopt.distribute(logical_cpus=2) as scope:
        found["probe"] = probe(scope.strategy)
    return found


@pytest.mark.slow
def test_without_the_mend_they_count_once_for_each_replica(alone):
    found = alone(unmended)
    assert found.pop("probe") is True
    assert min(found.values()) > 1e-3, found


def mended(names, count):
    cases = CASES | MORE
    return gaps({name: cases[name] for name in names or cases}, count)


def test_with_it_the_weights_are_those_of_one_device(replicas):
    found = replicas(mended, FEW, 2)
    assert all(each < 1e-5 for each in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_so_are_those_of_all_ways_to_write_them(alone, count):
    found = alone(mended, (), count)
    assert all(each < 1e-5 for each in found.values()), found


def doubtful():
    def halved(m, a, b):
        return mean(m, a, b) / tf.distribute.get_strategy().num_replicas_in_sync

    def ratio(m, a, b):
        return 1 - ops.sum(a * b) / ops.sum(a + ops.abs(b))

    def dice(a, b):
        return ratio(None, a, b)

    def root(m, a, b):
        return ops.sqrt(mean(m, a, b))

    cases = {
        "halved": model_of(own_step(halved)),
        "ratio": model_of(own_step(ratio)),
        "root": model_of(own_loss(root)),
        "eager": model_of(own_step(mean), run_eagerly=True),
    }
    with tfopt.distribute(logical_cpus=2) as scope:
        models = {name: made(how) for name, how in cases.items()}
        said = made(model_of(own_step(mean)))
        with_dice = made(model_of(keras.Model, dice))
        with warnings.catch_warnings(record=True) as before:
            warnings.simplefilter("always")
            trained(made(model_of(own_step(averaged))))
            trained(made(model_of(keras.Model)))
    told = {}
    for name, model in models.items():
        weights = model.get_weights()
        try:
            trained(model)
        except tfopt.errors.UserError as error:
            told[name] = [str(error), gap(weights, model.get_weights())]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(said)
    with warnings.catch_warnings(record=True) as of_dice:
        warnings.simplefilter("always")
        trained(with_dice)

    # TensorFlow's tutorial, and the same with a mean that nobody divides.
    def loop(strategy, loss_of):
        with strategy.scope():
            model = made(model_of(keras.Model))
            model.optimizer.build(model.trainable_variables)

        def step(data):
            inputs, wanted = data
            with tf.GradientTape() as tape:
                loss = loss_of(model, wanted, model(inputs, training=True))
            weights = model.trainable_variables
            model.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

        run = tf.function(lambda data: strategy.run(step, args=(data,)))
        batches = tf.data.Dataset.from_tensor_slices((x[:64], y[:64])).batch(16)
        for data in strategy.experimental_distribute_dataset(batches):
            run(data)
        return model.get_weights()

    def tutorial(m, a, b):
        return averaged(m, a, b) + tf.nn.scale_regularization_loss(tf.add_n(m.losses))

    with warnings.catch_warnings(record=True) as looped:
        warnings.simplefilter("always")
        one = loop(tf.distribute.get_strategy(), tutorial)
        two = loop(scope.strategy, tutorial)
        silent = len(looped)
        loop(scope.strategy, mean)

    def texts(heard):
        return [str(each.message) for each in heard if each.category is RuntimeWarning]

    return [
        told,
        texts(before),
        texts(caught),
        gap(one, two),
        texts(looped[:silent]),
        texts(looped[silent:]),
        texts(of_dice),
    ]


def test_what_is_not_sure_is_refused_and_what_was_counted_is_said(replicas):
    told, before, said, tutorial, silent, looped, of_dice = replicas(doubtful)
    assert set(told) == {"halved", "ratio", "root", "eager"}
    assert all(changed == 0.0 for _, changed in told.values())
    texts = {name: text for name, (text, _) in told.items()}
    assert texts["halved"].startswith("Own.train_step computes a loss")
    assert "a mean that is divided by 2" in texts["halved"]
    assert "RealDiv of two values of the data" in texts["ratio"]
    assert "Own.compute_loss" in texts["root"]
    assert "Sqrt" in texts["root"]
    assert len(of_dice) == 1
    assert of_dice[0].startswith("A loss function gives numbers that are no mean over examples")
    assert "eagerly" in texts["eager"]
    assert "run_eagerly=False" in texts["eager"]
    assert before == []
    assert silent == []
    assert tutorial < 1e-6
    assert len(said) == 1
    assert "Own.train_step means over the examples itself" in said[0]
    assert len(looped) == 1
    assert "num_replicas_in_sync" in looped[0]
