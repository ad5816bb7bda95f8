"""Make mnist_10k.npz from MNIST's four IDX files: the first 10,000 training and all test images.

Run ``python -m benchmarks.make_embedded_mnist IDX_DIR OUT``. The same files give the same bytes
with the same zlib.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.files import write_atomically

Array = np.ndarray[Any, Any]
TRAIN_EXAMPLES = 10_000
FILES = {
    "x_train": ("train-images-idx3-ubyte", (60_000, 28, 28)),
    "y_train": ("train-labels-idx1-ubyte", (60_000,)),
    "x_test": ("t10k-images-idx3-ubyte", (10_000, 28, 28)),
    "y_test": ("t10k-labels-idx1-ubyte", (10_000,)),
}


def read_mnist(folder: Path) -> dict[str, Array]:
    """Return the whole of MNIST from its IDX files, without their headers."""
    return {
        name: np.fromfile(folder / filename, np.uint8)[4 + 4 * len(shape) :].reshape(shape)
        for name, (filename, shape) in FILES.items()
    }


def packed(arrays: Mapping[str, Array]) -> bytes:
    """Return an .npz file without time stamps, at zlib's best level."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, values in sorted(arrays.items()):
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            # Else the archive would say on which system it was made.
            info.create_system = 3
            archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    return whole.getvalue()


if __name__ == "__main__":
    folder, target = map(Path, sys.argv[1:])
    mnist = read_mnist(folder)
    part = {name: a[:TRAIN_EXAMPLES] if "train" in name else a for name, a in mnist.items()}
    print(write_atomically(target, packed(part)))
