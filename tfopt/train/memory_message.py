"""Read what an error says about memory: messages of TensorFlow, XLA, CUDA and NumPy.

An error that is no lack of memory is read as None, also where its class is the same: a full disk,
too many open files and too long a message are ResourceExhaustedErrors too.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from math import prod
from typing import Any

_MIB = 1024**2
_UNITS = {"bytes": 1, "byte": 1, "B": 1}
_UNITS |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTPE", start=1)}
# The types whose names in the C++ of TensorFlow are not NumPy's.
_TYPES = {"float": "float32", "double": "float64", "half": "float16"}

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
_WITHOUT_SIZE = re.compile(
    r"OOM when allocating|[Oo]ut of memory while trying to allocate|"
    r"Ran out of memory in memory space|failed to allocate memory|CUDA_ERROR_OUT_OF_MEMORY|"
    r"cudaErrorMemoryAllocation|Status: out of memory|Dst tensor is not initialized|"
    r"CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|"
    r"failed to allocate the scratch space|std::bad_alloc"
)
_OPERATION = re.compile(
    r"Detected at node '?([\w./-]+)'? defined|\{\{node ([\w./-]+)\}\}|\[\[node ([\w./-]+)"
)
_EAGER = re.compile(r"\[Op:(\w+)\]")
_DEVICE = re.compile(r"\b(GPU|CPU):(\d+)", re.IGNORECASE)
_FUNCTIONS = ("StatefulPartitionedCall", "PartitionedCall", "__inference_")


@dataclass(frozen=True)
class Asked:
    """What there was no memory for; None for what the message does not say.

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
    """Return what an error could not get; None where it is about something else."""
    if isinstance(error, MemoryError):
        return _read(str(error)) or Asked(str(error) or type(error).__name__, device="CPU:0")
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
    tensor, array, size = _TENSOR.search(text), _ARRAY.search(text), _SIZE.search(text)
    found = tensor or array or size or _WITHOUT_SIZE.search(text)
    if found is None:
        return None
    shape, dtype, size_bytes, where = None, None, None, text
    if tensor or array:
        shape = tuple(map(int, re.findall(r"\d+", found[1])))
        dtype = _TYPES.get(found[2] or "", found[2])
        size_bytes = prod(shape) * _width(dtype) or None
        where = (tensor[3] or text) if tensor else "CPU:0"
    elif size:
        size_bytes = int(float(size[1]) * _UNITS[size[2]])
    line = next(line for line in text.splitlines() if found[0] in line).strip()
    return Asked(line, size_bytes, shape, dtype, _operation(text), _device(where))


def _width(dtype: str | None) -> int:
    bits = re.search(r"\d+$", dtype or "")
    return int(bits[0]) // 8 if bits else int(dtype == "bool")


def _operation(text: str) -> str | None:
    """Return the first operation that is named; a whole compiled function is none."""
    for found in _OPERATION.finditer(text):
        name: str = next(filter(None, found.groups()))
        if not any(function in name for function in _FUNCTIONS):
            return name
    eager = _EAGER.search(text)
    return eager[1] if eager and not eager[1].startswith("__") else None


def _device(text: str) -> str | None:
    """Return the device of a tensor; of a copy that failed, the one it was for."""
    found = _DEVICE.findall(text)
    gpus = [number for kind, number in found if kind.upper() == "GPU"]
    if gpus:
        return f"GPU:{gpus[0]}"
    return f"CPU:{found[0][1]}" if found else None


def asked_in_words(asked: Asked, model: Any) -> str:
    """Return what there was no memory for, with the layer of the model that asked for it."""
    parts = []
    if asked.size_bytes is not None:
        parts.append(f"{asked.size_bytes / _MIB:,.1f} MiB")
    if asked.shape is not None:
        parts.append(f"a {asked.dtype or ''} tensor of shape {asked.shape}".replace("  ", " "))
    words = " for ".join(parts) or asked.line
    if asked.operation is not None:
        layer = _layer(asked.operation, model)
        words += f", by {asked.operation}" + (f" (layer {layer})" if layer else "")
    return words + (f" on {asked.device}" if asked.device else "")


def _layer(operation: str, model: Any) -> str | None:
    """Return the innermost layer in an operation's name; repeated calls count their names on."""
    layers = model._flatten_layers(include_self=False) if model is not None else ()
    paths = {layer.name: layer.path or layer.name for layer in layers}
    parts = operation.split("/")
    names = [name for part in parts for name in (part.rpartition("_")[0], part) if name in paths]
    return paths[names[-1]] if names else None
