"""Load MNIST: as TFDS has prepared it, or the images embedded in this package.

Nothing is downloaded. Images are float32 in [0, 1] of 28x28x1, labels int64.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any, Literal, get_args

from tfopt.data.sources.tfds import prepared_parts
from tfopt.errors import require_one_of
from tfopt.job.parts import Data

Source = Literal["auto", "tfds", "embedded", "synthetic"]
SOURCES = get_args(Source)


def load_mnist(source: Source = "auto") -> Data:
    """Return MNIST; its ``name`` and ``note`` give the source and the reason for it.

    Args:
        source: "tfds" is TFDS's ``mnist``, as ``tfds.load("mnist")`` has prepared it; "embedded"
            are 20,000 of its images; "auto" is the first of these two that exists; "synthetic"
            is drawn squares, not real data.
    """
    require_one_of("source of MNIST", source, SOURCES)
    if source == "synthetic":
        parts = _drawn(2_000, seed=0), _drawn(1_000, seed=1)
        return _data("synthetic MNIST", "drawn squares, not real data", *parts)
    prepared, reason = prepared_parts(source, "mnist", "image")
    if prepared is not None:
        return _data("TFDS mnist", "real MNIST", *prepared)
    return _data("embedded MNIST", f"the first images of real MNIST ({reason})", *_embedded())


def _data(name: str, note: str, *parts: tuple[Any, Any]) -> Data:
    train, test = (
        (x.reshape(-1, 28, 28, 1).astype("float32") / 255, y.astype("int64")) for x, y in parts
    )
    note = f"{note}, {len(train[1]):,} to train and {len(test[1]):,} to test"
    return Data(train=train, test=test, name=name, note=note)


def _embedded() -> list[tuple[Any, Any]]:
    import numpy as np

    with as_file(files("tfopt.data") / "mnist_10k.npz") as path, np.load(path) as arrays:
        return [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]


def _drawn(count: int, seed: int) -> tuple[Any, Any]:
    """Draw noisy images with a bright square, whose position is the class."""
    import numpy as np

    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    squares = np.kron(np.eye(16)[labels].reshape(-1, 4, 4), np.ones((1, 7, 7)))
    return random.uniform(0, 102, (count, 28, 28)) + 153 * squares, labels
