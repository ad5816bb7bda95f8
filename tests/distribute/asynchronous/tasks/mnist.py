"""Real digits: the weights of two workers that wait for nobody, and those of one process."""

import json
import os
from pathlib import Path

import keras
import tensorflow as tf

import tfopt
from tfopt.data.mnist import load_mnist

FOLDER = Path(os.environ["FOLDER"])
DIGITS = load_mnist("embedded")


def build():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    return model


def data(share):
    x, y = (part[share.index :: share.count] for part in DIGITS.train)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(5000, seed=share.index).batch(50)


model, history = tfopt.train_asynchronously(
    build,
    data,
    epochs=4,
    validation_data=DIGITS.test,
)

# Only the chief comes here. The cluster has gone, and the model is one of this process.
again = model.evaluate(*DIGITS.test, verbose=0, return_dict=True)
alone = build()
alone.fit(*DIGITS.train, batch_size=50, epochs=4, verbose=0)
facts = {
    "history": history.history,
    "iterations": int(model.optimizer.iterations.numpy()),
    "again": again["accuracy"],
    "alone": alone.evaluate(*DIGITS.test, verbose=0, return_dict=True)["accuracy"],
}
(FOLDER / "facts").write_text(json.dumps(facts) + "\n")
