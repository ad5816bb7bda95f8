"""Read what an error says about memory: messages of TensorFlow, XLA, CUDA and NumPy.

An error that is no lack of memory is read as None, also where its class is the same: a full disk,
too many open files and too long a message are ResourceExhaustedErrors too.
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
class Asked:
    """What there was no memory for, in the words of the message.

    ``operation`` is a node of the graph ("sequential/dense/MatMul"), ``device`` such as "GPU:0".
    """

    line: str
    operation: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        return f"{self.line} (by {self.operation})" if self.operation else self.line


def read(error: BaseException) -> Asked | None:
    """Return what an error could not get; None where it is about something else."""
    if isinstance(error, MemoryError):
        asked = _read(str(error)) or Asked(str(error) or type(error).__name__)
        return replace(asked, device=asked.device or "CPU:0")
    if isinstance(error, OSError):
        short = error.errno == errno.ENOMEM
        return Asked(str(error), device="CPU:0") if short else None
    # Those of TensorFlow are not RuntimeErrors; their classes say little.
    if isinstance(error, RuntimeError) or hasattr(error, "node_def"):
        return _read(str(error))
    return None


def is_lack_of_memory(text: str) -> bool:
    """Return whether the last words of a process say that memory ran out."""
    return _read(text) is not None or "MemoryError" in text


def _read(text: str) -> Asked | None:
    line = next((line.strip() for line in text.splitlines() if _LACK.search(line)), None)
    if line is None:
        return None
    named = (next(filter(None, found.groups())) for found in _OPERATION.finditer(text))
    own = (name for name in named if not any(each in name for each in _WHOLE_FUNCTIONS))
    return Asked(line, next(own, None), _device(line) or _device(text))


def _device(text: str) -> str | None:
    """Return the device of a tensor; of a copy that failed, the GPU that it was for."""
    found = sorted(_DEVICE.findall(text.upper()), key=lambda each: each[0] != "GPU")
    return ":".join(found[0]) if found else None
