"""Make mnist_10k.npz from MNIST's four IDX files: the first 10,000 training and all test images.

Run ``python -m benchmarks.make_embedded_mnist IDX_DIR OUT``. The same files give the same bytes
with the same zlib.
"""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.errors import UserError
from tfopt.files import write_atomically

Array = np.ndarray[Any, Any]
TRAIN_EXAMPLES = 10_000
_FILES = {
    "x_train": ("train-images-idx3-ubyte", (60_000, 28, 28)),
    "y_train": ("train-labels-idx1-ubyte", (60_000,)),
    "x_test": ("t10k-images-idx3-ubyte", (10_000, 28, 28)),
    "y_test": ("t10k-labels-idx1-ubyte", (10_000,)),
}


def read_idx(path: Path) -> Array:
    """Return the array of one IDX file of unsigned bytes, as it is or gzipped."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    rank = content[3] if len(content) > 3 else 0
    header = 4 + 4 * rank
    shape = tuple(int(n) for n in np.frombuffer(content[4:header], ">u4"))
    size = int(np.prod(shape))
    if content[:3] != bytes((0, 0, 8)) or len(content) != header + size:
        raise UserError(
            f"{path} is not a whole IDX file.",
            expected="the header 00 00 08, the rank, the shape, and as many bytes as it says",
            received=f"{len(content)} bytes that begin with {content[:4].hex(' ') or 'nothing'}",
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_mnist(folder: Path) -> dict[str, Array]:
    """Return the whole of MNIST from its IDX files."""
    arrays = {}
    for name, (filename, shape) in _FILES.items():
        found = [p for p in (folder / filename, folder / f"{filename}.gz") if p.is_file()]
        if not found:
            raise UserError(
                f"{folder} does not hold MNIST.",
                expected=", ".join(filename for filename, _ in _FILES.values()),
                received=f"no {filename}",
            )
        arrays[name] = read_idx(found[0])
        if arrays[name].shape != shape:
            raise UserError(
                f"{found[0]} is not MNIST's.", expected=str(shape), received=arrays[name].shape
            )
    return arrays


def select(mnist: Mapping[str, Array]) -> dict[str, Array]:
    """Return the part that is embedded."""
    part = {name: a[:TRAIN_EXAMPLES] if "train" in name else a for name, a in mnist.items()}
    return dict(sorted(part.items()))


def packed(arrays: Mapping[str, Array]) -> bytes:
    """Return an .npz file without time stamps, at zlib's best level."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, values in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(values), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            # Else the archive would say on which system it was made.
            info.create_system = 3
            archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    return whole.getvalue()


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return its exit status."""
    if len(arguments) != 2:
        print("usage: python -m benchmarks.make_embedded_mnist IDX_DIR OUT", file=sys.stderr)
        return 2
    try:
        content = packed(select(read_mnist(Path(arguments[0]))))
        target = write_atomically(arguments[1], content)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{target}: {len(content):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
