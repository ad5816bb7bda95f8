"""LiteRT files in which equal vectors are stored once: the same model, read in the same way.

A kernel with a range for each channel has a zero point of 8 bytes for each, and so has its bias:
all of them zero, and more than a tenth of the file of a net with many channels.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

# Of longer vectors none is equal to another, but for copies that the converter has shared.
_LONGEST_COMPARED = 1 << 16
_TENSORS_ALIGNED_TO = 16
# A builder that must grow doubles, and ends where that is beyond two gigabytes.
_ROOM_FOR_EACH = 64


def with_shared_vectors(content: bytes) -> bytes:
    """Return the file, smaller by what it holds twice."""
    # Of the TensorFlow that wrote the file, so that it knows all there is in it.
    schema: Any = import_module("tensorflow.lite.python.schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    if any(buffer.offset for buffer in model.buffers or ()):
        return content  # its tensors come after what is read here
    builder = _sharing_builder(len(content) + _ROOM_FOR_EACH * (len(model.buffers or ()) + 1))
    builder.Finish(model.Pack(builder), b"TFL3")
    smaller = bytes(builder.Output())
    return smaller if len(smaller) < len(content) else content


def _sharing_builder(size: int) -> Any:
    flatbuffers: Any = import_module("flatbuffers")

    class Sharing(flatbuffers.Builder):  # type: ignore[misc]
        """Hands out the place of an equal vector that is there."""

        def __init__(self) -> None:
            super().__init__(size)
            self._there: dict[tuple[str, bytes], int] = {}

        def CreateNumpyVector(self, x: Any) -> int:  # noqa: N802 (flatbuffers calls it so)
            if x.nbytes > _LONGEST_COMPARED:
                return self._written(x)
            key = x.dtype.str, x.tobytes()
            if key not in self._there:
                self._there[key] = self._written(x)
            return self._there[key]

        def _written(self, x: Any) -> int:
            # Tensors are the only vectors of bytes without a sign.
            aligned = _TENSORS_ALIGNED_TO if x.dtype == np.uint8 else x.dtype.alignment
            # What the builder writes next ends where this much is free of the boundary.
            self.Prep(aligned, x.nbytes)
            return int(super().CreateNumpyVector(x))

    return Sharing()
