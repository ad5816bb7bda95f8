"""Train a small convolutional network on images that are augmented as they come.

Run it with ``python -m tfopt.recipes.image_from_scratch``.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt import Execution, Job, Quantize, chain
from tfopt.data.augment import in_input
from tfopt.data.mnist import SOURCES, load_mnist
from tfopt.data.sources.image_folder import class_folders
from tfopt.errors import UserError, require_count
from tfopt.job.parts import Data
from tfopt.recipes.plain_job import class_count, fixed_sample, plain_job, require_counts, run_recipe

if TYPE_CHECKING:
    import keras

IMAGE_FOLDER = "a folder with a sub-folder of images for each class"
_HELD_BACK = 0.2

CHAIN = chain(
    # The random layers, which XLA cannot compile, are in the input.
    Execution(jit_compile=True),
    Quantize(precision="int8"),
)


def job(
    *,
    data: str = "auto",
    size: int = 32,
    examples: int | None = 3_200,
    batch_size: int = 32,
    epochs: int = 3,
    steps: int | None = None,
    seed: int = 0,
) -> Job:
    """Return the plain job: random layers in the input, Adam at its default rate, batches of 32.

    Args:
        data: A folder with a sub-folder of images for each class (or ``train`` and ``test``
            folders of such), or where MNIST comes from: "auto", "tfds", "embedded", "synthetic".
        size: Height and width that images are resized to.
        examples: The most images that are taken for training, and for the test; None takes all.
            A folder is taken whole, but for training images that fill no batch.
    """
    require_count("size", size, 16)
    require_counts(examples=examples)
    classes = class_count(data, SOURCES, 10)
    build = functools.partial(convolutions, size, classes)
    load = functools.partial(load_augmented, data, size, examples, batch_size, seed)
    return plain_job("image_from_scratch", build, load, batch_size, epochs, steps, seed)


def convolutions(size: int, classes: int) -> keras.Model:
    """Return three convolutions, each with a pooling, and two dense layers."""
    import keras
    from keras import layers

    inputs = keras.Input((size, size, 3), name="pixels")
    x = layers.Rescaling(1 / 255)(inputs)
    for width in (16, 32, 64):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
    outputs = layers.Dense(classes, activation="softmax", name="head")(x)
    return keras.Model(inputs, outputs, name="image_from_scratch")


def load_augmented(
    source: str, size: int, examples: int | None, batch_size: int, seed: int
) -> Data:
    """Return images whose training part is a dataset of batches, turned and moved at random."""
    import tensorflow as tf
    from keras import layers

    data = load_images(source, size, examples, batch_size, seed)
    train = data.train
    random = [
        layers.RandomRotation(0.03, seed=seed),
        layers.RandomTranslation(0.1, 0.1, seed=seed + 1),
    ]
    if isinstance(train, tuple):
        train = tf.data.Dataset.from_tensor_slices(train)
        train = _whole_batches(train.shuffle(len(train), seed=seed), batch_size)
    else:  # a digit that is mirrored is another, or none
        random.append(layers.RandomFlip("horizontal", seed=seed + 2))
    train = train.map(in_input(random), tf.data.AUTOTUNE)
    return replace(data, train=train, note=f"{data.note}, augmented in every epoch")


def load_images(source: str, size: int, examples: int | None, batch_size: int, seed: int) -> Data:
    """Return images of the size in three channels, 0 to 255: MNIST's as arrays, a folder's not."""
    if source in SOURCES:
        return _digits(source, size, examples)
    return _folder(source, size, batch_size, seed)


def _digits(source: Any, size: int, examples: int | None) -> Data:
    import numpy as np
    import tensorflow as tf

    shape = f"{size}x{size} in three channels"
    data = fixed_sample(load_mnist(source), examples, shape)

    def in_colour(part: tuple[Any, Any]) -> tuple[Any, Any]:
        resized = tf.image.resize(part[0], (size, size)).numpy()
        return np.repeat(resized * np.float32(255), 3, axis=-1), part[1]

    return replace(data, train=in_colour(data.train), test=in_colour(data.test))


def _folder(folder: str, size: int, batch_size: int, seed: int) -> Data:
    """Return the images of a folder as datasets of batches; a fifth is held back for the test."""
    import keras

    found = class_folders(folder)

    def read(path: Path, **settings: Any) -> Any:
        return keras.utils.image_dataset_from_directory(
            path,
            class_names=list(found.classes),
            batch_size=None,
            image_size=(size, size),
            verbose=False,
            **settings,
        )

    if found.test is None:
        # One seed for all: another would hold back other images for the test.
        train, test = read(found.train, seed=0, validation_split=_HELD_BACK, subset="both")
        kept = f"{_HELD_BACK:.0%} held back for the test"
    else:
        train, test = read(found.train, seed=seed), read(found.test, shuffle=False)
        kept = "its own test folder"
    note = f"{len(found.classes)} classes in {found.train}, {kept}, {size}x{size}"
    train = _whole_batches(train, batch_size)
    return Data(train=train, test=test.batch(batch_size), name="images of a folder", note=note)


def _whole_batches(images: Any, batch_size: int) -> Any:
    """Return whole batches alone: their number and size are known before they are read."""
    if len(images) < batch_size:
        raise UserError(
            "There are fewer training images than a batch takes.",
            expected=f"at least {batch_size}",
            received=len(images),
            fix="a smaller batch_size",
        )
    return images.batch(batch_size, drop_remainder=True)


if __name__ == "__main__":
    run_recipe("image_from_scratch", CHAIN, data=IMAGE_FOLDER)
