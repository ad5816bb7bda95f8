"""Three small nets of the kinds that are compressed, for Keras 3 and for tf_keras alike.

Each function takes the ``layers`` of one of the two and returns input and output, so that both
tools get the same net.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SIZE = 28
CLASSES = 10
Net = Callable[[Any], tuple[Any, Any]]


def small_cnn(layers: Any) -> tuple[Any, Any]:
    """Two convolutions and two dense layers, as in most tutorials."""
    x = layers.Input((SIZE, SIZE, 1))
    y = layers.Conv2D(16, 3, activation="relu")(x)
    y = layers.MaxPooling2D()(y)
    y = layers.Conv2D(32, 3, activation="relu")(y)
    y = layers.MaxPooling2D()(y)
    y = layers.Flatten()(y)
    y = layers.Dense(64, activation="relu")(y)
    return x, layers.Dense(CLASSES, activation="softmax")(y)


def mobile(layers: Any) -> tuple[Any, Any]:
    """Depthwise and pointwise convolutions with BatchNorm, in two residual blocks."""
    x = layers.Input((SIZE, SIZE, 1))
    y = layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False)(x)
    y = _normalised(layers, y)
    for stride, width in ((1, 32), (2, 64), (1, 64)):
        z = layers.Conv2D(2 * width, 1, use_bias=False)(y)
        z = _normalised(layers, z)
        z = layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False)(z)
        z = _normalised(layers, z)
        z = layers.Conv2D(width, 1, use_bias=False)(z)
        z = layers.BatchNormalization()(z)
        y = layers.Add()([y, z]) if stride == 1 and y.shape[-1] == width else z
    y = _normalised(layers, layers.Conv2D(128, 1, use_bias=False)(y))
    y = layers.GlobalAveragePooling2D()(y)
    return x, layers.Dense(CLASSES, activation="softmax")(y)


def _normalised(layers: Any, y: Any) -> Any:
    return layers.ReLU(6.0)(layers.BatchNormalization()(y))


def transformer(layers: Any) -> tuple[Any, Any]:
    """Patches of 4 by 4 pixels, two blocks of attention and MLP."""
    width, heads = 48, 4
    x = layers.Input((SIZE, SIZE, 1))
    y = layers.Conv2D(width, 4, strides=4)(x)
    y = layers.Reshape((49, width))(y)
    # Learned places, without an operation that tfmot does not know.
    y = layers.Add()([y, layers.Dense(width)(y)])
    for _ in range(2):
        z = layers.LayerNormalization()(y)
        y = layers.Add()([y, layers.MultiHeadAttention(heads, width // heads)(z, z)])
        z = layers.LayerNormalization()(y)
        z = layers.Dense(2 * width, activation="relu")(z)
        y = layers.Add()([y, layers.Dense(width)(z)])
    y = layers.Flatten()(y)
    return x, layers.Dense(CLASSES, activation="softmax")(y)


NETS: dict[str, Net] = {"cnn": small_cnn, "mobile": mobile, "transformer": transformer}
