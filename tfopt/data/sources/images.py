"""Decode encoded images, and find those that cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

from tfopt.errors import UserError, first_line
from tfopt.job.cgroup import usable_cores

_AT_A_TIME = 256
_NAMED = 10


class Encoded(NamedTuple):
    """One encoded image of a source."""

    place: str
    content: bytes
    channels: int


def decode_image(encoded: Any, shape: tuple[int, ...]) -> Any:
    """Return one encoded image decoded and resized, as floats from 0 to 255."""
    import keras
    import tensorflow as tf

    height, width, channels = shape
    image = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
    image = tf.image.resize(image, (height, width))
    image.set_shape(shape)
    return tf.cast(image, keras.config.floatx())


def undecodable(images: Iterable[Encoded]) -> UserError | None:
    """Return the error that names the images that cannot be decoded; None where all can.

    TensorFlow's own error names none, since its operation gets the bytes alone.
    """
    bad: list[tuple[str, str]] = []
    left = iter(images)
    with ThreadPoolExecutor(usable_cores()) as pool:
        while some := list(islice(left, _AT_A_TIME)):
            reasons = pool.map(_why_not, some)
            bad += [(image.place, why) for image, why in zip(some, reasons, strict=True) if why]
    if not bad:
        return None
    places = [place for place, _ in bad[:_NAMED]]
    return UserError(
        f"{places[0]} cannot be decoded.",
        expected="whole JPEG, PNG, GIF or BMP images",
        received=f"{bad[0][1]}; bad images in all: {len(bad):,}",
        fix=f"remove them or write them again: {', '.join(places)}"
        + (" and others" if len(bad) > _NAMED else ""),
    )


def _why_not(image: Encoded) -> str:
    import tensorflow as tf

    try:
        tf.io.decode_image(image.content, channels=image.channels, expand_animations=False)
    except tf.errors.InvalidArgumentError as error:
        return first_line(error)
    return ""
