"""Load MNIST from where it can be had: TFDS, or the digits that come with this package.

Without a network nothing waits: TFDS alone retries for minutes. Images are float32 in [0, 1] of
28x28x1, labels int64.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit
from urllib.request import getproxies

from tfopt.errors import UserError
from tfopt.job.parts import Data

if TYPE_CHECKING:
    import numpy as np

Source = Literal["auto", "tfds", "embedded", "synthetic"]
SOURCES = get_args(Source)
_HOST = "storage.googleapis.com"
_PORT = 443


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
    except _NotToBeHadError as error:
        if source == "tfds":
            raise UserError(
                f"TFDS's mnist is not to be had: {error}.",
                expected="a prepared data set, or a network to download it from",
                fix=error.fix,
            ) from error
        return _embedded(f"TFDS's mnist is not to be had: {error}")


class _NotToBeHadError(Exception):
    """The reason why TFDS has no mnist for us, and what would mend that."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


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
    import tensorflow_datasets as tfds

    try:
        # TFDS itself looks at this variable only once, when it is imported.
        builder = tfds.builder("mnist", data_dir=os.environ.get("TFDS_DATA_DIR"))
        prepared = builder.data_path.exists()
    except Exception as error:
        raise _NotToBeHadError(f"its cache cannot be read ({_first_line(error)})", _MEND) from error
    folder = str(builder.data_path)
    if not prepared:
        _download(builder, timeout_s)
    try:
        parts = [_read(builder, split) for split in ("train", "test")]
    except Exception as error:
        raise _NotToBeHadError(
            f"its cache in {folder} is broken ({_first_line(error)})",
            f"delete {folder} and let TFDS prepare it again, or use --data=embedded",
        ) from error
    note = f"{len(parts[0][1]):,} training and {len(parts[1][1]):,} test images from {folder}"
    return Data(train=parts[0], test=parts[1], name="TFDS mnist", note=note)


_MEND = "mend or delete TFDS's folder (TFDS_DATA_DIR, ~/tensorflow_datasets), or use embedded data"


def _read(builder: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    import tensorflow_datasets as tfds

    whole = tfds.as_numpy(builder.as_dataset(split=split, batch_size=-1, shuffle_files=False))
    return _examples(whole["image"], whole["label"])


def _download(builder: Any, timeout_s: float) -> None:
    """Download in a process of its own: TFDS cannot be stopped otherwise."""
    if not _reachable(timeout_s):
        raise _NotToBeHadError(
            f"it is not prepared in {builder.data_path}, and {_HOST} cannot be reached",
            "connect to a network, prepare it elsewhere and set TFDS_DATA_DIR, or use "
            "--data=embedded",
        )
    folder = Path(builder.data_path).parent
    # Where TFDS writes before it renames; a stopped download leaves them.
    unfinished = "incomplete.*"
    before = set(folder.glob(unfinished))
    code = (
        "import sys, tensorflow_datasets as tfds; "
        "tfds.builder('mnist', data_dir=sys.argv[1]).download_and_prepare()"
    )
    command = [sys.executable, "-c", code, str(folder.parent)]
    try:
        subprocess.run(command, capture_output=True, check=True, text=True, timeout=timeout_s)
        return
    except subprocess.TimeoutExpired:
        reason = f"its download took more than {timeout_s:.0f} s"
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines() or [f"exit code {error.returncode}"]
        reason = f"its download failed ({last[-1]})"
    for part in set(folder.glob(unfinished)) - before:
        shutil.rmtree(part, ignore_errors=True)
    raise _NotToBeHadError(reason, "try again on a faster network, or use --data=embedded")


def _reachable(timeout_s: float) -> bool:
    """Return whether the host, or the proxy in front of it, answers within three seconds.

    Resolving a name has no time-out of its own, so it waits in a thread.
    """
    proxy = urlsplit(getproxies().get("https", ""))
    address = (proxy.hostname or _HOST, proxy.port or _PORT)
    answered: list[bool] = []

    def connect() -> None:
        try:
            with socket.create_connection(address, timeout=limit_s):
                answered.append(True)
        except OSError:
            return

    limit_s = min(timeout_s, 3.0)
    probe = threading.Thread(target=connect, daemon=True)
    probe.start()
    probe.join(limit_s)
    return bool(answered)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
