"""Nets and examples that jobs and peers share; without tfopt, and for any of Keras's backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras

PATCH = 16  # pixels
OPTIMIZERS = {"resnet50": "sgd", "bert": "adam", "vit": "adam"}


def build(net: str, sizes: Mapping[str, Any]) -> keras.Model:
    """Return a net of the peers by its name: resnet50 (on bytes), bert or vit."""
    if net == "resnet50":
        return resnet50(sizes["pixels"], as_bytes=True)
    return encoder(**sizes) if net == "bert" else vision_transformer(**sizes)


def examples(net: str, sizes: Mapping[str, Any], number: int) -> tuple[Any, Any]:
    """Return so many examples for a net of the peers."""
    if net == "bert":
        return noise_tokens(number, sizes["tokens"], sizes["vocabulary"])
    return noise_images(number, sizes["pixels"], as_bytes=True)


def noise_images(examples: int, pixels: int, *, as_bytes: bool = False) -> tuple[Any, Any]:
    """Return images of noise, as bytes or floats, and one of a thousand classes for each."""
    random, shape = np.random.default_rng(0), (examples, pixels, pixels, 3)
    if as_bytes:
        x = random.integers(256, size=shape, dtype="uint8")
    else:
        x = random.normal(size=shape).astype("float32")
    return x, random.integers(1000, size=examples)


def noise_tokens(examples: int, tokens: int, vocabulary: int) -> tuple[Any, Any]:
    """Return sequences of tokens, and whether the first one is odd."""
    x = np.random.default_rng(0).integers(1, vocabulary, size=(examples, tokens))
    return x, (x[:, 0] % 2).astype("int64")


def positions(tokens: int, width: int) -> Any:
    """Return the sines and cosines that tell a token where it is."""
    angles = np.arange(tokens)[:, None] / 10_000 ** (np.arange(width // 2) / (width // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")


def resnet50(pixels: int, *, as_bytes: bool = False) -> keras.Model:
    """Return ResNet-50 as Keras ships it; ``as_bytes`` scales whole numbers inside the model."""
    import keras

    shape = (pixels, pixels, 3)
    if not as_bytes:
        return keras.applications.ResNet50(weights=None, input_shape=shape)
    images = keras.Input(shape, dtype="uint8")
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1)(images)
    return keras.applications.ResNet50(weights=None, input_tensor=scaled)


def encoder(tokens: int, blocks: int, width: int, heads: int, vocabulary: int) -> keras.Model:
    """Return a Transformer encoder that normalizes behind each part, as BERT does."""
    import keras
    from keras import layers

    inputs = keras.Input((tokens,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(heads, width // heads)(x, x)
        x = layers.LayerNormalization()(x + attended)
        wide = layers.Dense(4 * width, "gelu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(width)(wide))
    pooled = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(2, "softmax")(pooled))


def vision_transformer(pixels: int, blocks: int, width: int, heads: int) -> keras.Model:
    """Return a Transformer on patches of 16 pixels that normalizes in front of each part."""
    import keras
    from keras import layers

    inputs = keras.Input((pixels, pixels, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    x = layers.Conv2D(width, PATCH, PATCH)(x)
    x = layers.Reshape((-1, width))(x)
    x = x + keras.ops.cast(positions(x.shape[1], width), x.dtype)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(heads, width // heads)(y, y)
        wide = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(wide)
    pooled = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(inputs, layers.Dense(1000, "softmax")(pooled))
