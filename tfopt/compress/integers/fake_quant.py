"""Fake quantization, with gradients.

Zero is exact, so that zeros stay zeros. Kernels are symmetric with a range per output channel, as
in a LiteRT file; clustered kernels have one range.
"""

from __future__ import annotations

from typing import Any

from tfopt.compress.kernels import Kernel
from tfopt.keras_internals import without_autocast

ACTIVATION_BITS = 8
# The smallest width of a range: a channel of zeros, an activation that is always zero
_NARROWEST = 1e-6
# The range of an activation that is always zero
_DEAD_RANGE = (0.0, 1.0)


def fake_quantized_kernel(kernel: Kernel, bits: int) -> Any:
    """Return the kernel, rounded to ``2 ** bits - 1`` values per channel."""
    import tensorflow as tf

    value = tf.cast(stored(kernel), tf.float32)
    # TensorFlow's per-channel operator takes four times as long on a CPU.
    highest = tf.reduce_max(tf.abs(value), _shared_axes(kernel), keepdims=True)
    unit = tf.maximum(highest, _NARROWEST) / (2 ** (bits - 1) - 1)
    return tf.grad_pass_through(lambda value: tf.round(value / unit) * unit)(value)


def stored(kernel: Kernel) -> Any:
    """Return a kernel's stored values, without a cast to half precision."""
    import tensorflow as tf

    with without_autocast():
        return tf.convert_to_tensor(kernel.variable.value)


def fake_quantized(values: Any, low: Any, high: Any) -> Any:
    """Round values to 256 values of a range; the gradient passes inside the range."""
    import tensorflow as tf

    wide = tf.cast(values, tf.float32)
    rounded = tf.quantization.fake_quant_with_min_max_vars(
        wide, low, tf.maximum(high, low + _NARROWEST), num_bits=ACTIVATION_BITS
    )
    return tf.cast(rounded, values.dtype)


def batch_range(values: Any, *, positive: bool) -> Any:
    """Return the lowest and the highest value, extended to zero."""
    import tensorflow as tf

    zero = tf.constant(0.0)
    # The reduction is the main cost of observing a range.
    low = zero if positive else tf.minimum(tf.cast(tf.reduce_min(values), tf.float32), zero)
    return tf.stack([low, tf.maximum(tf.cast(tf.reduce_max(values), tf.float32), zero)])


def moved_range(old: Any, batch: Any, momentum: float) -> Any:
    """Return the moving average of ranges, started by the first one, without infinite ones."""
    import tensorflow as tf

    seen = old[1] > old[0]
    # An activation that is always zero has a range too: an empty one means "not observed yet".
    first = tf.where(batch[1] > batch[0], batch, tf.constant(_DEAD_RANGE))
    moved = tf.where(seen, old + (batch - old) * (1 - momentum), first)
    return tf.where(tf.reduce_all(tf.math.is_finite(batch)), moved, old)


def _shared_axes(kernel: Kernel) -> tuple[int, ...]:
    """Return the axes along which weights share a range: those summed over.

    All axes of a clustered kernel: ranges per channel would round a cluster to different values.
    """
    rank = len(kernel.variable.shape)
    if getattr(kernel.variable.constraint, "one_scale", False):
        return tuple(range(rank))
    if kernel.inputs is not None:
        return kernel.inputs
    # Embeddings have one range; the channels of a depthwise kernel are its last two axes.
    return tuple(range(rank)) if rank == 2 else tuple(range(rank - 2))
