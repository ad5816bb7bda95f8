"""Load MNIST from where it can be had: TFDS, or the digits that come with this package.

Without a network nothing waits: TFDS alone retries for minutes. Images are float32 in [0, 1] of
28x28x1, labels int64.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any, Literal, get_args

from tfopt.data.tfds_splits import NotToBeHadError, read_splits
from tfopt.errors import UserError
from tfopt.job.parts import Data

if TYPE_CHECKING:
    import numpy as np

Source = Literal["auto", "tfds", "embedded", "synthetic"]
SOURCES = get_args(Source)
_HOST = "storage.googleapis.com"


def load_mnist(source: Source = "auto", *, timeout_s: float = 20.0) -> Data:
    """Return MNIST; its ``name`` and ``note`` say which source was taken, and why.

    Args:
        source: "auto" takes TFDS's ``mnist`` where it is prepared or can be downloaded within
            the time-out, else the embedded digits; "tfds" insists on TFDS; "embedded" and
            "synthetic" (drawn shapes, not real data) need nothing.
        timeout_s: How long a download may take before "auto" gives it up.
    """
    if source not in SOURCES:
        raise UserError(
            "There is no such source of MNIST.", expected=" | ".join(SOURCES), received=repr(source)
        )
    if source == "embedded":
        return _embedded("asked for")
    if source == "synthetic":
        return _synthetic()
    try:
        return _tfds(timeout_s)
    except NotToBeHadError as error:
        if source == "tfds":
            raise UserError(
                f"TFDS's mnist is not to be had: {error}.",
                expected="a prepared data set, or a network to download it from",
                fix=error.fix,
            ) from error
        return _embedded(f"TFDS's mnist is not to be had: {error}")


def _embedded(reason: str) -> Data:
    import numpy as np

    with (
        as_file(files("tfopt.data") / "mnist_10k.npz") as path,
        np.load(path, allow_pickle=False) as parts,
    ):
        train = _examples(parts["x_train"], parts["y_train"])
        test = _examples(parts["x_test"], parts["y_test"])
    note = f"real MNIST, the first 10,000 training and all 10,000 test images ({reason})"
    return Data(train=train, test=test, name="embedded MNIST", note=note)


def _examples(images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    scaled = images.reshape(-1, 28, 28, 1).astype(np.float32) / np.float32(255)
    return scaled, labels.astype(np.int64)


def _synthetic() -> Data:
    """Draw a bright square at a place for each class, under noise: learnable, not real."""
    import numpy as np

    def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(seed)
        labels = random.integers(0, 10, count)
        images = random.uniform(0, 0.4, (count, 28, 28, 1)).astype(np.float32)
        for image, label in zip(images, labels, strict=True):
            row, column = divmod(int(label), 4)
            top, left = 2 + row * 9, 1 + column * 7
            image[top : top + 6, left : left + 5] += 0.6
        return images, labels.astype(np.int64)

    note = "drawn squares, not real data"
    return Data(train=draw(2_000, 0), test=draw(1_000, 1), name="synthetic MNIST", note=note)


def _tfds(timeout_s: float) -> Data:
    (train, test), folder = read_splits("mnist", ("train", "test"), host=_HOST, timeout_s=timeout_s)
    parts = [_examples(part["image"], part["label"]) for part in (train, test)]
    note = f"{len(parts[0][1]):,} training and {len(parts[1][1]):,} test images from {folder}"
    return Data(train=parts[0], test=parts[1], name="TFDS mnist", note=note)
