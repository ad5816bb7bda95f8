"""Replace XLA's gradient of max pooling on the CPU, several times slower than TensorFlow's.

The gradient becomes HLO's select-and-scatter, which the CPU backend lowers to a scalar loop: a
small convolutional net trains slower with ``jit_compile=True`` than without (TensorFlow 2.21).

If pooling windows do not overlap and tile the image, the same function is a reshape and a maximum,
with a gradient that XLA fuses. Outputs and gradients are equal bit for bit, also for ties; other
poolings are Keras's, also ``keras.ops.max_pool``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.hooks import replaced


@contextmanager
def tiled_max_pool() -> Iterator[None]:
    """Use the fast form in MaxPooling2D inside."""
    import keras

    plain = keras.layers.MaxPooling2D.call

    def call(layer: Any, inputs: Any) -> Any:
        window = _tiling_window(layer, inputs.shape)
        return plain(layer, inputs) if window is None else max_pool_tiles(inputs, *window)

    with replaced(keras.layers.MaxPooling2D, call=call):
        yield


def pools_tiles(layer: Any) -> bool:
    """Return whether a layer takes the maximum of windows that tile a channels-last image."""
    import keras

    if not isinstance(layer, keras.layers.MaxPooling2D):
        return False
    return bool(layer.data_format == "channels_last" and layer.strides == layer.pool_size)


def _tiling_window(layer: Any, shape: Any) -> tuple[int, int] | None:
    """Return the window if windows tile an image of known size, else None."""
    if None in shape[1:] or not pools_tiles(layer):
        return None
    window = layer.pool_size
    height, width = shape[1:3]
    uneven = height % window[0] or width % window[1]
    if uneven and (layer.padding != "valid" or height < window[0] or width < window[1]):
        return None
    return int(window[0]), int(window[1])


def max_pool_tiles(inputs: Any, rows: int, columns: int) -> Any:
    """Pool over tiles of ``rows`` x ``columns``; a partial tile is cut off."""
    import tensorflow as tf

    inputs = tf.convert_to_tensor(inputs)
    height, width, channels = inputs.shape[1:]
    high, wide = height // rows, width // columns
    tiles_shape = (-1, high, rows, wide, columns, channels)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def pool(image: Any) -> Any:
        tiles = tf.reshape(image, tiles_shape)
        highest = tf.reduce_max(tiles, axis=(2, 4), keepdims=True)

        def gradient(upstream: Any) -> Any:
            upstream = tf.reshape(upstream, (-1, high, 1, wide, 1, channels))
            taken = _first_equal(tiles, highest, rows, columns)
            return tf.reshape(tf.where(taken, upstream, tf.zeros_like(upstream)), tf.shape(image))

        return tf.reshape(highest, (-1, high, wide, channels)), gradient

    return pool(inputs[:, : high * rows, : wide * columns, :])


def _first_equal(tiles: Any, highest: Any, rows: int, columns: int) -> Any:
    """Return a mask of the first maximum of each tile, in row-major order."""
    import tensorflow as tf

    lines = []
    seen = None
    for row in range(rows):
        places = []
        for column in range(columns):
            equal = tf.equal(tiles[:, :, row : row + 1, :, column : column + 1, :], highest)
            places.append(equal if seen is None else equal & ~seen)
            seen = equal if seen is None else seen | equal
        lines.append(tf.concat(places, axis=4))
    return tf.concat(lines, axis=2)
