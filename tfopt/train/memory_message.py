"""Recognise out-of-memory errors of TensorFlow, XLA, CUDA and NumPy by their messages.

Other errors are read as None, also of the same class: a full disk, too many open files and an
oversized message are ResourceExhaustedErrors too.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, replace

_LACK = re.compile(
    r"OOM when allocating|[Oo]ut of memory while trying to allocate|Unable to allocate .* array|"
    r"[Ff]ailed to allocate (?:memory|request for|[\d.]+ ?(?:bytes?|[KMGTPE]?i?B))|"
    r"Ran out of memory in memory space|CUDA_ERROR_OUT_OF_MEMORY|"
    r"cudaErrorMemoryAllocation|Status: out of memory|Dst tensor is not initialized|"
    r"CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|"
    r"failed to allocate the scratch space|std::bad_alloc"
)
_OPERATION = re.compile(
    r"Detected at node '?([\w./-]+)'? defined|\{\{node ([\w./-]+)\}\}|\[\[node ([\w./-]+)|"
    r"\[Op:(\w+)\]"
)
_WHOLE_FUNCTIONS = ("PartitionedCall", "__inference_")
_DEVICE = re.compile(r"\b(GPU|CPU):(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class FailedAllocation:
    """The failed allocation, as in the message.

    ``operation`` is a node of the graph ("sequential/dense/MatMul"), ``device`` such as "GPU:0".
    """

    line: str
    operation: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        return f"{self.line} (by {self.operation})" if self.operation else self.line


def read(error: BaseException) -> FailedAllocation | None:
    """Return the allocation that failed; None for any other error."""
    if isinstance(error, MemoryError):
        asked = _read(str(error)) or FailedAllocation(str(error) or type(error).__name__)
        return replace(asked, device=asked.device or "CPU:0")
    if isinstance(error, OSError):
        short = error.errno == errno.ENOMEM
        return FailedAllocation(str(error), device="CPU:0") if short else None
    # TensorFlow's errors are not RuntimeErrors.
    if isinstance(error, RuntimeError) or hasattr(error, "node_def"):
        return _read(str(error))
    return None


def is_lack_of_memory(text: str) -> bool:
    """Return whether the last output of a process says that memory ran out."""
    return _read(text) is not None or "MemoryError" in text


def _read(text: str) -> FailedAllocation | None:
    line = next((line.strip() for line in text.splitlines() if _LACK.search(line)), None)
    if line is None:
        return None
    named = (next(filter(None, match.groups())) for match in _OPERATION.finditer(text))
    own = (name for name in named if not any(function in name for function in _WHOLE_FUNCTIONS))
    return FailedAllocation(line, next(own, None), _device(line) or _device(text))


def _device(text: str) -> str | None:
    """Return the device in a message; of a failed copy between devices, the GPU."""
    devices = sorted(_DEVICE.findall(text.upper()), key=lambda device: device[0] != "GPU")
    return ":".join(devices[0]) if devices else None
