"""What an error says about memory: read from the messages of TensorFlow, XLA, CUDA and NumPy.

Guarantees: never raises; an error that is no lack of memory is None, also where its class is the
same: a full disk, too many open files and too long a message are ResourceExhaustedErrors too.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from math import prod

_UNITS = {"bytes": 1, "byte": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS |= {"PiB": 2**50, "EiB": 2**60}
# As the C++ of TensorFlow calls them, and NumPy.
_TYPES = {"float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2)}
_TYPES |= {
    name: (name, int(re.sub(r"\D", "", name)) // 8)
    for name in (
        "bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "complex64", "complex128",
    )
}  # fmt: skip
_TYPES["bool"] = ("bool", 1)

_TENSOR = re.compile(
    r"OOM when allocating tensor with shape ?\[([\d,]*)\](?: and type (\w+) on (\S+))?"
)
_ARRAY = re.compile(
    r"Unable to allocate [\d.]+ \w+ for an array with shape \(([\d, ]*)\) and data type (\w+)"
)
_SIZE = re.compile(
    r"(?:Out of memory while trying to allocate|Failed to allocate request for|"
    r"failed to allocate) ([\d.]+) ?(bytes|byte|[KMGTPE]iB|B)\b"
)
# Without a figure.
_WORDS = re.compile(
    "|".join(
        (
            r"OOM when allocating",
            r"[Oo]ut of memory while trying to allocate",
            r"Ran out of memory in memory space",
            r"failed to allocate memory",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"cudaErrorMemoryAllocation",
            r"Status: out of memory",
            r"Dst tensor is not initialized",
            r"CUDNN_STATUS_ALLOC_FAILED",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"failed to allocate the scratch space",
            r"std::bad_alloc",
        )
    )
)
_OPERATION = re.compile(
    r"Detected at node '?([\w./-]+)'? defined|\{\{node ([\w./-]+)\}\}|\[\[node ([\w./-]+)"
)
_EAGER = re.compile(r"\[Op:(\w+)\]")
_DEVICE = re.compile(r"\b(GPU|CPU):(\d+)", re.IGNORECASE)
_FUNCTIONS = ("StatefulPartitionedCall", "PartitionedCall", "__inference_")


@dataclass(frozen=True)
class Asked:
    """What there was no memory for; None for what the message does not tell.

    Attributes:
        line: The words of the message that say it.
        operation: A node of the graph, such as "sequential/dense/MatMul", or an operation's name.
        device: "GPU:0" or "CPU:0".
    """

    line: str
    size_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    operation: str | None = None
    device: str | None = None


def read(error: BaseException) -> Asked | None:
    """What this error could not get; None where it is about something else."""
    if isinstance(error, MemoryError):
        return _read(str(error)) or Asked(str(error) or type(error).__name__, device="CPU:0")
    if isinstance(error, OSError):
        short = error.errno == errno.ENOMEM
        return Asked(str(error), device="CPU:0") if short else None
    # Those of TensorFlow are not RuntimeErrors; their classes say little.
    if isinstance(error, RuntimeError) or hasattr(error, "node_def"):
        return _read(str(error))
    return None


def tells_of_memory(text: str) -> bool:
    """Whether the last words of a process say that memory ran out."""
    return _read(text) is not None or "MemoryError" in text


def _read(text: str) -> Asked | None:
    tensor, array, size = _TENSOR.search(text), _ARRAY.search(text), _SIZE.search(text)
    found = tensor or array or size or _WORDS.search(text)
    if found is None:
        return None
    shape, dtype, size_bytes, where = None, None, None, text
    if tensor is not None:
        shape, (dtype, width) = _shape(tensor[1]), _TYPES.get(tensor[2] or "", (tensor[2], 0))
        size_bytes = prod(shape) * width or None
        where = tensor[3] or text
    elif array is not None:
        shape, (dtype, width) = _shape(array[1]), _TYPES.get(array[2], (array[2], 0))
        size_bytes, where = prod(shape) * width or None, "CPU:0"
    elif size is not None:
        size_bytes = int(float(size[1]) * _UNITS[size[2]])
    line = next(line for line in text.splitlines() if found[0] in line).strip()
    return Asked(line, size_bytes, shape, dtype, _operation(text), _device(where))


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(length) for length in text.replace(" ", "").split(",") if length)


def _operation(text: str) -> str | None:
    """The innermost operation that is named; a whole compiled function is none."""
    for found in _OPERATION.finditer(text):
        name: str = next(filter(None, found.groups()))
        if not any(function in name for function in _FUNCTIONS):
            return name
    eager = _EAGER.search(text)
    return eager[1] if eager and not eager[1].startswith("__") else None


def _device(text: str) -> str | None:
    """The device of a tensor; of a copy that failed, the one it was for."""
    found = _DEVICE.findall(text)
    gpus = [number for kind, number in found if kind.upper() == "GPU"]
    if gpus:
        return f"GPU:{gpus[0]}"
    return f"CPU:{found[0][1]}" if found else None
