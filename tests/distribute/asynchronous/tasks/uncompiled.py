"""The user has forgotten to compile."""

import keras
from small import data

import tfopt

tfopt.train_asynchronously(
    lambda: keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]),
    data,
    epochs=1,
    patience_s=60,
)
