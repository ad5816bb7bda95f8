"""Fake quantization: float values that an integer could stand for, with their gradient.

Zero is always such a value, so zeros stay zeros. Weights are symmetric around zero, with a range
for each output channel, which is the grid that a LiteRT file has for them; or with one for the
kernel, where clusters hold its values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compress.kernels import Kernel
from tfopt.keras_internals import without_autocast

ACTIVATION_BITS = 8
# Below this a range has no width: a channel of zeros, an activation that is always zero.
_NARROWEST = 1e-6
# Of an activation that is always zero.
_DEAD_RANGE = (0.0, 1.0)
Rounded = Callable[[Any, str], Any]
"""What is done to values at a place inside a layer, by the name of the place."""


def fake_quantized_kernel(kernel: Kernel, bits: int) -> Any:
    """Return the kernel's values, each rounded to its channel's ``2 ** bits - 1`` values."""
    import tensorflow as tf

    value = tf.cast(stored(kernel), tf.float32)
    # TensorFlow's own operator walks a matrix column by column: four times as long on a CPU.
    highest = tf.reduce_max(tf.abs(value), _shared_axes(kernel), keepdims=True)
    unit = tf.maximum(highest, _NARROWEST) / (2 ** (bits - 1) - 1)
    return _rounded_to(value, unit)


def stored(kernel: Kernel) -> Any:
    """Return the values as they are stored, also where a layer reads them in half precision."""
    import tensorflow as tf

    with without_autocast():
        return tf.convert_to_tensor(kernel.variable.value)


def fake_quantized(values: Any, low: Any, high: Any) -> Any:
    """Round values to the 256 of a range around zero; the gradient passes inside the range."""
    import tensorflow as tf

    wide = tf.cast(values, tf.float32)
    rounded = tf.quantization.fake_quant_with_min_max_vars(
        wide, low, tf.maximum(high, low + _NARROWEST), num_bits=ACTIVATION_BITS
    )
    return tf.cast(rounded, values.dtype)


def batch_range(values: Any, *, positive: bool) -> Any:
    """Return the lowest and the highest value, and zero between them."""
    import tensorflow as tf

    zero = tf.constant(0.0)
    # A reduction over all values is the greater part of what observing costs.
    low = zero if positive else tf.minimum(tf.cast(tf.reduce_min(values), tf.float32), zero)
    return tf.stack([low, tf.maximum(tf.cast(tf.reduce_max(values), tf.float32), zero)])


def moved_range(old: Any, batch: Any, momentum: float) -> Any:
    """Return the moving average of ranges, begun by the first; what is not finite has no say."""
    import tensorflow as tf

    seen = old[1] > old[0]
    # An activation that is always zero has a range too: another one would mean "not seen yet".
    first = tf.where(batch[1] > batch[0], batch, tf.constant(_DEAD_RANGE))
    moved = tf.where(seen, old + (batch - old) * (1 - momentum), first)
    return tf.where(tf.reduce_all(tf.math.is_finite(batch)), moved, old)


def _rounded_to(value: Any, unit: Any) -> Any:
    """Round to multiples of a unit; the gradient passes: no weight is outside its own range."""
    import tensorflow as tf

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def rounded(value: Any) -> Any:
        return tf.round(value / unit) * unit, lambda gradient: gradient

    return rounded(value)


def _shared_axes(kernel: Kernel) -> tuple[int, ...]:
    """Return the axes along which weights share a range: those summed over.

    All of them where few values are held for the whole kernel: a range for each channel would make
    other values of them in each.
    """
    rank = len(kernel.variable.shape)
    if getattr(kernel.variable.constraint, "one_scale", False):
        return tuple(range(rank))
    if kernel.inputs is not None:
        return kernel.inputs
    # Rows are looked up with one range; a depthwise kernel's channels are its last two axes.
    return tuple(range(rank)) if rank == 2 else tuple(range(rank - 2))
