"""Decode images, and find those that cannot be decoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tfopt.data.ahead import mapped_ahead
from tfopt.errors import UserError, first_line, whole
from tfopt.job.cgroup import usable_cores

_NAMED = 10


class Encoded(NamedTuple):
    """An encoded image of a source."""

    place: str
    content: bytes
    channels: int


def require_image_shape(owner: str, shape: Sequence[Any]) -> None:
    """Refuse anything but the height, the width and the channels of an image."""
    sizes = [whole(size) or 0 for size in shape]
    if len(sizes) != 3 or min(sizes) < 1 or sizes[2] not in (1, 3, 4):
        raise UserError(
            f"{owner}: the shape is not that of an image.",
            expected="(height, width, channels) with 1, 3 or 4 channels",
            received=repr(tuple(shape)),
        )


def decode_image(encoded: Any, shape: tuple[int, ...]) -> Any:
    """Return an image decoded and resized, as floats from 0 to 255."""
    import keras
    import tensorflow as tf

    height, width, channels = shape
    image = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
    image = tf.image.resize(image, (height, width))
    image.set_shape(shape)
    return tf.cast(image, keras.config.floatx())


def undecodable(images: Iterable[Encoded]) -> UserError | None:
    """Return the error that names the images that cannot be decoded; None if all can.

    TensorFlow's error names none, since its operation gets only the bytes.
    """
    tried = mapped_ahead(_decoding_error, images, usable_cores())
    bad = [(place, text) for place, text in tried if text]
    if not bad:
        return None
    places = [place for place, _ in bad[:_NAMED]]
    return UserError(
        f"{places[0]} cannot be decoded.",
        expected="intact JPEG, PNG, GIF or BMP images",
        received=f"{bad[0][1]}; bad images in all: {len(bad):,}",
        fix=f"remove them or write them again: {', '.join(places)}"
        + (" and others" if len(bad) > _NAMED else ""),
    )


def _decoding_error(image: Encoded) -> tuple[str, str]:
    """Return the place of an image, and why it cannot be decoded; "" if it can."""
    import tensorflow as tf

    try:
        tf.io.decode_image(image.content, channels=image.channels, expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        return image.place, first_line(error)
    return image.place, ""
