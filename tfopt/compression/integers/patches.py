"""Patches of images as LiteRT can take them, while a model is traced for its file.

Guarantees: the same results; TensorFlow is as it was when the context is left. For
``tf.image.extract_patches``, with which many a Vision Transformer begins, LiteRT has no operator:
patches beside each other are blocks moved into the depth, and others a convolution that picks each
value once, as ``keras.ops.image.extract_patches`` has it. What is known only when the model runs is
left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tfopt.one_at_a_time import ONE_AT_A_TIME


@contextmanager
def patches_by_blocks() -> Iterator[None]:
    """Inside it TensorFlow takes patches of float images so; in other threads too, equally."""
    import tensorflow as tf

    with ONE_AT_A_TIME:
        plain = tf.image.extract_patches
        tf.image.extract_patches = _by_blocks(plain)
        try:
            yield
        finally:
            tf.image.extract_patches = plain


def _by_blocks(plain: Callable[..., Any]) -> Callable[..., Any]:
    def extract_patches(
        images: Any,
        sizes: Sequence[int],
        strides: Sequence[int],
        rates: Sequence[int],
        padding: str,
        name: str | None = None,
    ) -> Any:
        import tensorflow as tf

        images = tf.convert_to_tensor(images)
        known = images.shape.rank == 4 and images.shape[-1] is not None
        if not (known and images.dtype.is_floating):
            return plain(images, sizes, strides, rates, padding, name)
        size, stride, rate = (tuple(map(int, each[1:3])) for each in (sizes, strides, rates))
        if _beside_each_other(size, stride, rate, images.shape[1:3]):
            return tf.nn.space_to_depth(images, size[0])
        values = size[0] * size[1] * images.shape[-1]
        each_once = tf.reshape(tf.eye(values, dtype=images.dtype), [*size, -1, values])
        return tf.nn.conv2d(images, each_once, stride, padding, dilations=rate)

    return extract_patches


def _beside_each_other(
    size: tuple[int, ...], stride: tuple[int, ...], rate: tuple[int, ...], image: Any
) -> bool:
    """Whether squares of more than a pixel fill the image, each pixel in one."""
    block = size[0]
    return (
        block > 1
        and size == stride == (block, block)
        and rate == (1, 1)
        and all(length is not None and length % block == 0 for length in image)
    )
