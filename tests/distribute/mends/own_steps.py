"""Train a model with a train_step of its own on one device and on two; run in another process.

69 examples in batches of 16 leave a last batch of 5.
"""

import warnings

import keras
import numpy as np
import tensorflow as tf

import tfopt

K = keras.layers
rng = np.random.default_rng(0)
x = rng.normal(size=(69, 6)).astype("float32")
y = rng.normal(size=(69, 3)).astype("float32")


class Own(keras.Model):
    def loss_of(self, inputs, wanted):
        return tf.reduce_mean(tf.square(self(inputs) - wanted))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        weights = self.trainable_variables
        grads = self.changed(tape.gradient(loss, weights), loss, *data)
        self.optimizer.apply(grads, weights)
        return {"own": loss}

    def changed(self, grads, loss, inputs, wanted):
        return grads


def made(kind, **changed):
    keras.utils.set_random_seed(0)
    i = keras.Input((6,))
    kind = type("Own", (kind,), changed)
    model = kind(i, K.Dense(3)(K.Dense(8, "tanh")(i)))
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    return model


def trained(model, inputs=x, wanted=y):
    model.fit(inputs, wanted, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def gap(one, other):
    return float(np.max([np.abs(a - b).max() for a, b in zip(one, other, strict=True)]))


def compared(cases, train=trained, made=made):
    """Return for each case the largest difference of a weight and what was warned of.

    The difference of a case that was refused is None.
    """
    with tfopt.distribute(logical_cpus=2):
        several = {name: made(*case[:1], **case[1]) for name, case in cases.items()}
    found = {}
    for name, (kind, changed) in cases.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                weights = train(several[name])
            except tfopt.errors.UserError as error:
                found[name] = [None, [str(error)]]
                continue
        told = [str(each.message) for each in caught if each.category is RuntimeWarning]
        told = [each for each in told if "means over the examples itself" not in each]
        found[name] = [gap(train(made(kind, **changed)), weights), told]
    return found
