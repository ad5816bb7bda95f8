"""Twelve small nets of the kinds that people serve, and those of Keras, with random weights."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

ARCHITECTURES = [name for name in dir(keras.applications) if name[0].isupper()]
_SMALLEST = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}


def mlp() -> Any:
    i = keras.Input((20,))
    h = layers.Dropout(0.2)(layers.Dense(64, activation="relu")(i))
    return i, layers.Dense(3, activation="softmax")(h)


def cnn() -> Any:
    i = keras.Input((28, 28, 1))
    h = layers.MaxPooling2D()(layers.Conv2D(16, 3, activation="relu")(i))
    h = layers.MaxPooling2D()(layers.Conv2D(32, 3, activation="relu")(h))
    h = layers.Dense(64, activation="relu")(layers.Flatten()(h))
    return i, layers.Dense(10, activation="softmax")(h)


def depthwise() -> Any:
    i = keras.Input((32, 32, 3))
    h = layers.Rescaling(2.0, -1.0)(i)
    h = layers.Conv2D(16, 3, strides=2, padding="same")(h)
    for filters in (32, 48):
        h = layers.ReLU(6.0)(layers.BatchNormalization()(h))
        h = layers.DepthwiseConv2D(3, strides=2, padding="same", use_bias=False)(h)
        h = layers.ReLU(6.0)(layers.BatchNormalization()(h))
        h = layers.Conv2D(filters, 1, use_bias=False)(h)
    return i, layers.Dense(10)(layers.GlobalAveragePooling2D()(h))


def conv1d() -> Any:
    i = keras.Input((64, 4))
    h = layers.Conv1D(16, 5, padding="causal", activation="relu")(i)
    h = layers.SeparableConv1D(24, 3, activation="silu")(h)
    return i, layers.Dense(2)(layers.GlobalMaxPooling1D()(h))


def conv3d() -> Any:
    i = keras.Input((8, 16, 16, 1))
    h = layers.MaxPooling3D()(layers.Conv3D(8, 3, padding="same", activation="relu")(i))
    return i, layers.Dense(4, activation="softmax")(layers.GlobalAveragePooling3D()(h))


def unet() -> Any:
    i = keras.Input((32, 32, 3))
    skip = layers.Conv2D(8, 3, padding="same", activation="relu")(i)
    h = layers.Conv2D(16, 3, padding="same", activation="relu")(layers.MaxPooling2D()(skip))
    h = layers.Conv2DTranspose(8, 2, strides=2)(h)
    h = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.Concatenate()([h, skip]))
    return i, layers.Conv2D(1, 1, activation="sigmoid")(h)


def upsampled() -> Any:
    i = keras.Input((16, 16, 3))
    h = layers.LeakyReLU()(layers.GroupNormalization(4)(layers.Conv2D(16, 3, padding="same")(i)))
    h = layers.UpSampling2D(interpolation="bilinear")(h)
    return i, layers.Conv2D(3, 3, padding="same", activation="tanh")(h)


def lstm() -> Any:
    i = keras.Input((24, 6))
    h = layers.LSTM(16)(layers.LSTM(16, return_sequences=True)(i))
    return i, layers.Dense(1)(h)


def bidirectional_gru() -> Any:
    i = keras.Input((20,), dtype="int32")
    h = layers.Bidirectional(layers.GRU(12))(layers.Embedding(100, 16, mask_zero=True)(i))
    return i, layers.Dense(1, activation="sigmoid")(h)


def transformer() -> Any:
    i = keras.Input((32,), dtype="int32")
    h = layers.Embedding(100, 64)(i)
    for _ in range(2):
        h = layers.LayerNormalization()(h + layers.MultiHeadAttention(4, 16)(h, h))
        wide = layers.Dense(128, activation="gelu")(h)
        h = layers.LayerNormalization()(h + layers.Dense(64)(wide))
    return i, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling1D()(h))


def two_inputs() -> Any:
    image, table = keras.Input((16, 16, 3), name="image"), keras.Input((5,), name="table")
    seen = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, activation="relu")(image))
    known = layers.Dense(8, activation="elu")(layers.Normalization(mean=0.5, variance=0.1)(table))
    h = layers.Concatenate()([seen, known])
    outputs = {
        "kind": layers.Dense(3, activation="softmax", name="kind")(h),
        "size": layers.Dense(1, name="size")(h),
    }
    return [image, table], outputs


def residual() -> Any:
    i = keras.Input((32, 32, 3))
    h = layers.Conv2D(16, 3, padding="same")(i)
    for _ in range(3):
        inner = layers.Activation("relu")(layers.BatchNormalization()(h))
        h = layers.Add()([h, layers.Conv2D(16, 3, padding="same")(inner)])
    return i, layers.Dense(10)(layers.GlobalAveragePooling2D()(h))


_OWN = (
    *(mlp, cnn, depthwise, conv1d, conv3d, unet, upsampled),
    *(lstm, bidirectional_gru, transformer, two_inputs, residual),
)
NETS = {function.__name__: function for function in _OWN}


def net(name: str) -> tuple[Any, Any]:
    """Return a net and 64 examples for it: one of the above, or an architecture of Keras's."""
    keras.utils.set_random_seed(0)
    if name in NETS:
        model = keras.Model(*NETS[name](), name=name)
    else:
        size = _SMALLEST.get(name, 32)
        model = getattr(keras.applications, name)(
            weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None
        )
        _keep_the_scale(model)
        if name.startswith("EfficientNetV2"):
            _halve_branches(model)
    return model, examples(model)


def _keep_the_scale(model: Any) -> None:
    """Draw kernels by He et al. (2015), so that values neither fade nor grow from layer to layer.

    Some architectures begin with others, by which what comes out of thirty layers is too small for
    integers: of such a net nothing can be said.
    """
    draw = np.random.default_rng(2)
    for layer in model._flatten_layers():
        for kernel in (each for each in layer._trainable_variables if len(each.shape) in (2, 4)):
            inputs = kernel.shape[:2] if "Depthwise" in type(layer).__name__ else kernel.shape[:-1]
            kernel.assign(draw.normal(0, np.sqrt(2 / np.prod(inputs)), kernel.shape))


def _halve_branches(model: Any) -> None:
    """Halve what each block adds to its input: else values grow from block to block.

    Through dozens of blocks each rounding grew with them, and of the outputs nothing was left.
    """
    names = {layer.name for layer in model.layers}
    for layer in model.layers:
        block = layer.name.removesuffix("project_bn")
        if block != layer.name and f"{block}add" in names:
            layer.gamma.assign(layer.gamma / 2)


def examples(model: Any, count: int = 64) -> Any:
    """Return noise for a model's inputs, and numbers below 100 for those of words.

    It lies between 0 and 1, or 0 and 255 for a model that scales such pixels itself.
    """
    draw, most = np.random.default_rng(1), 255 if _takes_pixels(model) else 1
    columns: list[Any] = []
    for port in model.inputs:
        shape = (count, *port.shape[1:])
        if "int" in port.dtype:
            columns.append(draw.integers(0, 100, shape).astype("int32"))
        else:
            columns.append((most * draw.random(shape)).astype("float32"))
    return columns if len(columns) > 1 else columns[0]


def _takes_pixels(model: Any) -> bool:
    """Return whether a model begins by dividing what comes in, or by taking a large mean off it."""
    return any(
        (isinstance(layer, layers.Rescaling) and np.max(layer.scale) < 0.1)
        or (isinstance(layer, layers.Normalization) and np.max(layer.mean) > 1)
        for layer in model._flatten_layers()
    )
