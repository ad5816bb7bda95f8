"""Trains some epochs after what is kept; the disk may be full for one of them."""

import os
import resource
import signal

import keras
from small import FOLDER, Noted, data, note

import tfopt
from tfopt.distribute.asynchronous.building import optimizers_of

# As on a full disk: a write that fails, not the end of the process.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
FULL_IN = int(os.environ.get("FULL_IN", "-1"))


class Fills(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        room = 50_000 if epoch == FULL_IN else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))


def build():
    hidden = keras.layers.Dense(3000, "relu", dtype="bfloat16")
    model = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


model, history = tfopt.train_asynchronously(
    build,
    lambda share: data(share).take(20),
    epochs=int(os.environ["EPOCHS"]),
    callbacks=[Noted(), Fills()],
    checkpoint=FOLDER / "kept",
    patience_s=60,
)
counts = {name: int(each.iterations.numpy()) for name, each in optimizers_of(model).items()}
note(counts=counts, epochs=history.epoch)
