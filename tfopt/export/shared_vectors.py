"""Store equal vectors of a LiteRT file once.

A per-channel kernel has a zero point of 8 bytes per channel, and so has its bias: all zeros, and
more than a tenth of the file of a net with many channels.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import flatbuffers
import numpy as np

# The converter itself shares longer vectors.
_LONGEST_COMPARED = 1 << 16
_TENSORS_ALIGNED_TO = 16
# Bytes per buffer for the builder, which doubles when it is full, and fails beyond two gigabytes
_ROOM_PER_BUFFER = 64
_LARGEST = 1 << 30


def with_shared_vectors(content: bytes, schema_of: str) -> bytes:
    """Return the file without duplicate vectors.

    ``schema_of`` is the package that wrote the file: the schema of another one, older or newer, may
    lack what is in the file, such as the scales of blocks that TensorFlow 2.18 does not know.
    """
    schema: Any = import_module(f"{schema_of}.schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    if len(content) > _LARGEST:
        return content
    for buffer in (buffer for buffer in model.buffers or () if buffer.offset > 1):
        # The quantizer stores more than 256 KiB of tensors after the flatbuffer.
        buffer.data = np.frombuffer(content, np.uint8, buffer.size, buffer.offset)
        buffer.offset = buffer.size = 0
    builder = _Sharing(len(content) + _ROOM_PER_BUFFER * (len(model.buffers or ()) + 1))
    builder.Finish(model.Pack(builder), b"TFL3")
    smaller = bytes(builder.Output())
    return smaller if len(smaller) < len(content) else content


class _Sharing(flatbuffers.Builder):  # type: ignore[misc]
    """A builder that returns the offset of an equal vector instead of writing it again."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._offsets: dict[tuple[str, bytes], int] = {}

    def CreateNumpyVector(self, x: Any) -> int:  # noqa: N802 (flatbuffers calls it so)
        if x.nbytes > _LONGEST_COMPARED:
            return self._written(x)
        key = x.dtype.str, x.tobytes()
        if key not in self._offsets:
            self._offsets[key] = self._written(x)
        return self._offsets[key]

    def _written(self, x: Any) -> int:
        # Only tensors are vectors of uint8.
        aligned = _TENSORS_ALIGNED_TO if x.dtype == np.uint8 else x.dtype.alignment
        self.Prep(aligned, x.nbytes)
        return int(super().CreateNumpyVector(x))
