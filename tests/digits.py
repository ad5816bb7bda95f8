"""Real handwritten digits of 8 by 8 pixels: the embedded MNIST, made small. A net learns them in seconds."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tfopt.data.mnist import load_mnist


def small_digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """So many images of shape (8, 8, 1) with values in [0, 1], and their labels."""
    images, labels = load_mnist("embedded").train
    inner = np.asarray(images[:count], "float32").reshape(count, 28, 28)[:, 2:26, 2:26]
    assert 0.9 < inner.max() <= 1
    return inner.reshape(count, 8, 3, 8, 3).mean(axis=(2, 4))[..., None], labels[:count]


def digit_net(*hidden: Any, output: str | None = None) -> keras.Model:
    """A compiled net for them: the hidden layers, and ten probabilities."""
    last = keras.layers.Dense(10, activation="softmax", name=output)
    model = keras.Sequential([keras.Input((8, 8, 1), name="image"), *hidden, last], name="digits")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
