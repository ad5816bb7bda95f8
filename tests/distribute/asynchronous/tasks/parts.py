"""Many models in one cluster: the chief's parts, without train_asynchronously around them."""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers
from small import X, build, data, note

from tfopt.distribute.asynchronous.chief import Chief
from tfopt.distribute.asynchronous.connection import Connection
from tfopt.distribute.asynchronous.server import serve
from tfopt.distribute.launch.place import place_in_cluster

sys.path.append(str(Path(__file__).parents[4]))
from benchmarks import models_to_prove

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Seen(keras.metrics.Metric):
    """Counts examples by reading and assigning, as several of Keras's metrics do."""

    def __init__(self):
        super().__init__(name="seen")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign(self.count + keras.ops.shape(y_pred)[0])

    def result(self):
        return self.count


class Everything(keras.Model):
    """Built lazily; statistics, random numbers, a loss of its own and a constraint; what wraps round
    and what is a flag."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(16)
        self.norm = layers.BatchNormalization(momentum=0.9)
        self.drop = layers.Dropout(0.2, seed=7)
        self.last = layers.Dense(3, kernel_constraint=keras.constraints.MaxNorm(0.7))
        kept = {"shape": (), "initializer": "zeros", "trainable": False}
        self.pointer = self.add_weight(name="pointer", dtype="int32", **kept)
        self.begun = self.add_weight(name="begun", dtype="bool", **kept)

    def call(self, x, training=None):
        if training:
            self.pointer.assign((self.pointer + 1) % 3)
            self.begun.assign(keras.ops.logical_or(self.begun, True))
        hidden = self.norm(self.first(x), training=training)
        self.add_loss(1e-3 * keras.ops.mean(hidden**2))
        return self.last(self.drop(keras.ops.relu(hidden), training=training))


def everything():
    model = Everything()
    optimizer = optimizers.AdamW(0.01, use_ema=True, global_clipnorm=1.0)
    model.compile(optimizer, LOSS, metrics=["accuracy", Seen()])
    return model


def adversaries():
    model, _ = models_to_prove.gan()
    model.d_optimizer.build(model.discriminator.trainable_variables)
    model.g_optimizer.build(model.generator.trainable_variables)
    return model


def real(share):
    mine = slice(share.index, None, share.count)
    return tf.data.Dataset.from_tensor_slices(models_to_prove.X[mine]).batch(8)


def few(share):
    return data(share).take(40)


def with_optimizer(make):
    def built():
        model = build()
        model.compile(make(), LOSS, metrics=["accuracy"])
        return model

    return built


def trained(connection, make, examples, epochs, staleness=None):
    chief = Chief(connection, make, examples, staleness, None)
    model, history = chief.train(epochs, None, [])
    facts = {"iterations": int(model.optimizer.iterations.numpy()), **history.history}
    return model, facts


def main(connection):
    model, facts = trained(connection, everything, data, 3)
    note(
        name="everything",
        moving_mean=model.norm.moving_mean.numpy().tolist(),
        mean=model.first(X).numpy().mean(0).tolist(),
        draws=int(model.drop.seed_generator.state.numpy()[1]),
        pointer=int(model.pointer.numpy()),
        begun=bool(model.begun.numpy()),
        norms=np.linalg.norm(model.last.kernel.numpy(), axis=0).tolist(),
        **facts,
    )
    model, facts = trained(connection, adversaries, real, 2)
    note(
        name="adversaries",
        d_iterations=int(model.d_optimizer.iterations.numpy()),
        g_iterations=int(model.g_optimizer.iterations.numpy()),
        moved=float(np.abs(model.d_optimizer.variables[2].numpy()).max()),
        **facts,
    )
    for bound in (0, 2):
        note(name=f"bound {bound}", **trained(connection, build, few, 1, bound)[1])
    for make in (
        lambda: optimizers.Adamax(0.01),
        lambda: optimizers.Nadam(0.01),
        lambda: optimizers.Adafactor(0.05),
        # Keras 3.8 has none.
        *([lambda: optimizers.Muon(0.02)] if hasattr(optimizers, "Muon") else ()),
    ):
        note(
            name=f"optimizer {make().name}", **trained(connection, with_optimizer(make), few, 2)[1]
        )


place = place_in_cluster()
if place.kind == "chief":
    connection = Connection(place, 60)
    try:
        main(connection)
    finally:
        connection.end("done")
else:
    serve(place, 60)
