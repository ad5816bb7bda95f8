"""What NVML tells of the GPUs of this machine.

Guarantees: never raises for a missing driver, library or permission; says in words why there
is nothing to tell; NVML is imported and initialised only inside a call and shut down after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_MIB = 1024 * 1024


@dataclass(frozen=True)
class GpuMemory:
    """One GPU's memory at a moment."""

    uuid: str
    name: str
    total_mib: float
    free_mib: float


def gpu_memories() -> list[GpuMemory] | str:
    """The GPUs in CUDA's order under CUDA_VISIBLE_DEVICES, or why there are none to read."""
    try:
        with _nvml() as nvml:
            count = nvml.nvmlDeviceGetCount()
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            found = [_read(nvml, handle) for handle in handles]
    except _UnavailableError as error:
        return str(error)
    return select_visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    try:
        with _nvml() as nvml:
            return _text(nvml.nvmlSystemGetDriverVersion())
    except _UnavailableError:
        return None


def process_gpu_mib(process_id: int) -> float | None:
    """GPU memory that a process holds on all GPUs together; None if NVML cannot tell."""
    try:
        with _nvml() as nvml:
            held = [
                used
                for index in range(nvml.nvmlDeviceGetCount())
                for used in _held(nvml, nvml.nvmlDeviceGetHandleByIndex(index), process_id)
            ]
    except _UnavailableError:
        return None
    return sum(held) / _MIB if held else None


def why_no_gpu() -> str:
    """Why TensorFlow sees no GPU here, as far as can be told, in one line."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    memories = gpu_memories()
    if isinstance(memories, str):
        return f"no GPU visible ({memories})"
    if not memories:
        return "no GPU visible (the NVIDIA driver lists none)"
    return (
        f"the driver lists {len(memories)} GPU(s) but TensorFlow sees none: this TensorFlow "
        "build lacks CUDA libraries (pip install 'tfopt[gpu]')"
    )


def select_visible(gpus: list[GpuMemory], visible: str | None) -> list[GpuMemory]:
    """Applies CUDA_VISIBLE_DEVICES as CUDA does: in its order, ending at the first unknown."""
    if visible is None:
        return gpus
    chosen: list[GpuMemory] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit():
            matches = gpus[int(entry) : int(entry) + 1]
        else:
            matches = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(matches) != 1:
            break
        chosen.append(matches[0])
    return chosen


class _UnavailableError(Exception):
    """NVML cannot answer; the text says why."""


@contextmanager
def _nvml() -> Iterator[Any]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise _UnavailableError(f"NVML: {error}") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise _UnavailableError(f"NVML: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any, handle: Any) -> GpuMemory:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return GpuMemory(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_mib=memory.total / _MIB,
        free_mib=memory.free / _MIB,
    )


def _held(nvml: Any, handle: Any, process_id: int) -> list[int]:
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return [
        process.usedGpuMemory
        for process in processes
        if process.pid == process_id and process.usedGpuMemory is not None
    ]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
