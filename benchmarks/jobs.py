"""Jobs to measure that are larger than ``cnn_mnist``, and one whose input is slow on purpose.

``tfopt bench benchmarks/resnet50.toml`` and the other recipe files here name them. The examples
are made from a seed: what is measured is the time of a step, not what is learned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import nets
from tfopt import Data, Job

if TYPE_CHECKING:
    import keras


def resnet50(
    *, batch_size: int = 2, pixels: int = 224, examples: int = 64, as_bytes: bool = False
) -> Job:
    """ResNet-50 as Keras ships it, on images of noise.

    ``as_bytes`` gives them as whole numbers that the model scales, as decoded files come: a
    quarter of the traffic to a GPU.
    """
    return Job(
        lambda: nets.resnet50(pixels, as_bytes=as_bytes),
        lambda: Data(nets.noise_images(examples, pixels, as_bytes=as_bytes), name="noise images"),
        _compile("sgd"),
        name="resnet50",
        batch_size=batch_size,
    )


def transformer(
    *,
    batch_size: int = 16,
    tokens: int = 64,
    examples: int = 1024,
    blocks: int = 2,
    width: int = 128,
    heads: int = 4,
    vocabulary: int = 5000,
) -> Job:
    """A small Transformer encoder that classifies sequences of tokens."""
    return Job(
        lambda: nets.encoder(tokens, blocks, width, heads, vocabulary),
        lambda: Data(nets.noise_tokens(examples, tokens, vocabulary), name="noise tokens"),
        _compile("adam"),
        name="transformer",
        batch_size=batch_size,
    )


def slow_generator(*, batch_size: int = 32, wait_ms: float = 20.0, epochs: int = 1) -> Job:
    """A dense network fed by a Python generator that takes its time for every batch."""

    def batches() -> Iterator[tuple[Any, Any]]:
        random = np.random.default_rng(0)
        for _ in range(100):
            time.sleep(wait_ms / 1000)
            x = random.normal(size=(batch_size, 64)).astype("float32")
            yield x, (x[:, 0] > 0).astype("int64")

    def build() -> keras.Model:
        import keras

        layers = keras.layers
        return keras.Sequential(
            [keras.Input((64,)), layers.Dense(128, "relu"), layers.Dense(2, "softmax")]
        )

    return Job(
        build,
        lambda: Data(train=batches, name="slow noise"),
        _compile("adam"),
        name="slow_generator",
        epochs=epochs,
    )


def dense(*, batch_size: int = 32, examples: int = 8192, width: int = 256) -> Job:
    """Three dense layers on rows of a table."""

    def build() -> keras.Model:
        import keras

        layers = keras.layers
        hidden = [layers.Dense(width, "relu") for _ in range(2)]
        return keras.Sequential([keras.Input((64,)), *hidden, layers.Dense(10, "softmax")])

    return _on_noise("dense", build, (64,), batch_size, examples)


def small_resnet(*, batch_size: int = 16, examples: int = 1024, width: int = 16) -> Job:
    """Three residual blocks with batch normalization, on images of 32 pixels."""

    def build() -> keras.Model:
        import keras
        from keras import layers

        inputs = keras.Input((32, 32, 3))
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(inputs)
        for stage in range(3):
            filters, strides = width * 2**stage, 1 + (stage > 0)
            y = layers.Conv2D(filters, 3, strides, "same", use_bias=False)(x)
            y = layers.ReLU()(layers.BatchNormalization()(y))
            y = layers.Conv2D(filters, 3, padding="same", use_bias=False)(y)
            shortcut = layers.Conv2D(filters, 1, strides)(x)
            x = layers.ReLU()(layers.BatchNormalization()(y) + shortcut)
        pooled = layers.GlobalAveragePooling2D()(x)
        return keras.Model(inputs, layers.Dense(10, "softmax")(pooled))

    return _on_noise("small_resnet", build, (32, 32, 3), batch_size, examples)


def lstm(*, batch_size: int = 16, examples: int = 2048, tokens: int = 32, width: int = 64) -> Job:
    """One LSTM over sequences of vectors."""

    def build() -> keras.Model:
        import keras

        layers = keras.layers
        inputs = keras.Input((tokens, 16))
        return keras.Sequential([inputs, layers.LSTM(width), layers.Dense(10, "softmax")])

    return _on_noise("lstm", build, (tokens, 16), batch_size, examples)


def _on_noise(
    name: str, build: Callable[[], Any], shape: tuple[int, ...], batch_size: int, examples: int
) -> Job:
    def data() -> Data:
        random = np.random.default_rng(0)
        x = random.normal(size=(examples, *shape)).astype("float32")
        return Data(train=(x, random.integers(10, size=examples)), name=f"noise for {name}")

    return Job(build, data, _compile("adam"), name=name, batch_size=batch_size, epochs=5)


def _compile(optimizer: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"optimizer": optimizer, "loss": "sparse_categorical_crossentropy"}
