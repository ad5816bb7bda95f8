"""Fine-tune a network of ``keras.applications`` on images: frozen layers under a new head.

Run it with ``python -m tfopt.recipes.image_finetuning``. The data's note in the report
says which weights the training started from.
"""

from __future__ import annotations

import functools
import random
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from tfopt import Job, LearningRate, Pipeline, Quantize, chain
from tfopt.data.mnist import SOURCES
from tfopt.errors import UserError, require_count, require_one_of
from tfopt.job.parts import Data
from tfopt.recipes.image_from_scratch import IMAGE_FOLDER, load_images
from tfopt.recipes.plain_job import class_count, plain_job, require_counts, run_recipe

if TYPE_CHECKING:
    import keras

Weights = Literal["auto", "imagenet", "none"]
_SILENCE_S = 5.0

CHAIN = chain(
    LearningRate(peak=0.003, warmup=0.1, decay="cosine"),
    # 50 divides the 2,000 images: a smaller last batch would be compiled a second time.
    Pipeline(batch_size=50),
    Quantize(precision="int8"),
)


def job(
    *,
    data: str = "auto",
    network: str = "MobileNetV2:block_6_expand_relu",
    weights: Weights = "auto",
    unfreeze: int = 0,
    size: int = 32,
    examples: int | None = 2_000,
    batch_size: int = 32,
    epochs: int = 3,
    steps: int | None = None,
    seed: int = 0,
) -> Job:
    """Return the plain job: Adam at its default rate on the new head, batches of 32.

    Args:
        data: A folder with a sub-folder of images for each class (or ``train`` and ``test``
            folders of such), or where MNIST comes from: "auto", "tfds", "embedded", "synthetic".
        network: A function of ``keras.applications``; after a colon, the layer it ends at. Small
            images leave its last layers a map of one pixel.
        weights: "imagenet" insists on Keras's weights, from its cache or its download; "none"
            starts from random ones; "auto" takes ImageNet's where they can be had, else random
            ones, and the data's note says which and why. Random layers are never frozen.
        unfreeze: How many of the last layers of a pretrained network train as well.
        size: Height and width that images are resized to.
        examples: The most images that are taken for training, and for the test; None takes all.
            A folder is taken whole, but for training images that fill no batch.
    """
    require_count("size", size, 32)
    require_count("unfreeze", unfreeze, 0)
    require_counts(examples=examples)
    require_one_of("weights", weights, get_args(Weights))
    classes = class_count(data, SOURCES, 10)
    build = functools.partial(fine_tuned, network, weights, size, classes, unfreeze)
    load = functools.partial(
        load_prepared, data, network, weights, size, examples, batch_size, seed
    )
    return plain_job("image_finetuning", build, load, batch_size, epochs, steps, seed)


def fine_tuned(
    network: str, weights: Weights, size: int, classes: int, unfreeze: int
) -> keras.Model:
    """Return the network under a new head; a pretrained one is frozen but for its last layers."""
    import keras

    pretrained = why_from_scratch(network, weights, size) is None
    base = _network(network, size, "imagenet" if pretrained else None)
    if pretrained:
        for layer in base.layers[: max(len(base.layers) - unfreeze, 0)]:
            layer.trainable = False
    else:
        for layer in base.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                # Keras's averages over a thousand batches: more than a short training has.
                layer.momentum = 0.9
    inputs = keras.Input((size, size, 3))
    # Normalization by the statistics of ImageNet, also where its scales train on.
    x = base(inputs, training=False) if pretrained else base(inputs)
    if len(x.shape) == 4:
        x = keras.layers.GlobalAveragePooling2D(name="pooled")(x)
    outputs = keras.layers.Dense(classes, activation="softmax", name="head")(x)
    return keras.Model(inputs, outputs, name="image_finetuning")


def load_prepared(
    source: str,
    network: str,
    weights: Weights,
    size: int,
    examples: int | None,
    batch_size: int,
    seed: int,
) -> Data:
    """Return images as the network takes them; the note says which weights it starts from."""
    missing = why_from_scratch(network, weights, size)
    prepare = _preparation(network)
    data = load_images(source, size, examples, batch_size, seed)

    def prepared(part: Any) -> Any:
        if isinstance(part, tuple):
            return prepare(part[0]), part[1]
        return part.map(lambda images, labels: (prepare(images), labels), -1)

    started = (
        f"{network} with ImageNet's weights"
        if missing is None
        else f"{network} with random weights, every layer trained ({missing})"
    )
    note = f"{data.note}; {started}"
    return replace(data, train=prepared(data.train), test=prepared(data.test), note=note)


def why_from_scratch(network: str, weights: Weights, size: int) -> str | None:
    """Return why the network starts from random weights; None: from ImageNet's.

    "imagenet" raises a UserError where they cannot be had. The answer is the same for the rest of
    the process, so that the note of the data is true of the model.
    """
    if weights == "none":
        return "asked for"
    reason = _why_no_imagenet(network, size)
    if reason is not None and weights == "imagenet":
        raise UserError(
            f"{network}: {reason}.",
            expected="a network to download them, or the file in Keras's cache (~/.keras/models)",
            fix='weights="auto" goes on without them and says so; weights="none" does not try',
        )
    return reason


@functools.cache
def _why_no_imagenet(network: str, size: int) -> str | None:
    """Try it once; Keras keeps the file, and ``fine_tuned`` finds it there."""
    drawn = random.getstate()
    try:
        with _short_timeout():
            _network(network, size, "imagenet")
    except UserError:
        raise
    except Exception as error:  # Keras raises a bare Exception when a download fails
        _network(network, size, None)  # refuses what cannot be built with any weights
        reason = str(error).strip().rpartition(" -- ")[2].splitlines()
        return f"ImageNet's cannot be had: {reason[0] if reason else type(error).__name__}"
    finally:
        # From here Keras draws the seeds of its initializers: the next model is as without a try.
        random.setstate(drawn)
    return None


@contextmanager
def _short_timeout() -> Iterator[None]:
    """Give up a connection on which nothing comes; Keras itself waits without end."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _function(network: str) -> Callable[..., keras.Model]:
    import keras

    name = network.partition(":")[0]
    known = [kind for kind in dir(keras.applications) if kind[0].isupper()]
    require_one_of("network of keras.applications", name, known)
    made: Callable[..., keras.Model] = getattr(keras.applications, name)
    return made


def _network(network: str, size: int, weights: str | None) -> keras.Model:
    """Return the network without its own head, up to the layer that is named."""
    import keras

    with warnings.catch_warnings():
        # The weights for 224 pixels serve every size of a network without its head.
        warnings.filterwarnings("ignore", message="`input_shape` is undefined or non-square")
        make = functools.partial(_function(network), include_top=False, weights=weights)
        try:
            whole = make(input_shape=(size, size, 3))
        except ValueError as error:
            if weights is not None:
                raise  # may be about the file
            raise UserError(
                f"keras.applications cannot build {network} for images of {size}x{size}.",
                expected="a size that this network takes",
                received=str(error).strip(),
            ) from error
    _, colon, last = network.partition(":")
    if not colon:
        return whole
    names = [layer.name for layer in whole.layers]
    if last not in names:
        raise UserError(
            f"{whole.name} has no layer {last!r}.",
            expected=f"one of {len(names)} layers, as {', '.join(names[-5:])}",
            received=repr(network),
        )
    return keras.Model(whole.input, whole.get_layer(last).output, name=whole.name)


def _preparation(network: str) -> Callable[[Any], Any]:
    """Return the function by which this network's pixels, 0 to 255, were scaled for ImageNet."""
    import keras

    home = _function(network).__module__.rpartition(".")[2]
    prepare: Callable[[Any], Any] = getattr(keras.applications, home).preprocess_input
    return prepare


if __name__ == "__main__":
    run_recipe("image_finetuning", CHAIN, data=IMAGE_FOLDER)
