"""What NVML tells of the GPUs of this machine.

Guarantees: never raises for a missing driver, library or permission; says in words why there
is nothing to tell; NVML is imported and initialised only inside a call and shut down after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

MIB = 1024 * 1024


@dataclass(frozen=True)
class GpuMemory:
    """One GPU's memory at a moment."""

    uuid: str
    name: str
    total_mib: float
    free_mib: float


@dataclass(frozen=True)
class ListedGpu:
    """A GPU, or a part of one (MIG), with the handle that an open session asks it by."""

    uuid: str
    name: str
    handle: Any


def gpu_memories() -> list[GpuMemory] | str:
    """The GPUs in CUDA's order under CUDA_VISIBLE_DEVICES, or why there are none to read."""
    try:
        with session() as nvml:
            return [_read(nvml, gpu) for gpu in visible_gpus(nvml)]
    except UnavailableError as error:
        return str(error)


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    try:
        with session() as nvml:
            return _text(nvml.nvmlSystemGetDriverVersion())
    except UnavailableError:
        return None


def newest_cuda() -> str | None:
    """The newest CUDA that the driver can run, or None without a driver."""
    try:
        with session() as nvml:
            number = nvml.nvmlSystemGetCudaDriverVersion_v2()
    except UnavailableError:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


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


class _Named(Protocol):
    @property
    def uuid(self) -> str: ...


_Gpu = TypeVar("_Gpu", bound=_Named)


def select_visible(gpus: Sequence[_Gpu], visible: str | None) -> list[_Gpu]:
    """Applies CUDA_VISIBLE_DEVICES as CUDA does: in its order, ending at the first unknown."""
    if visible is None:
        return list(gpus)
    chosen: list[_Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdigit():
            matches = list(gpus[int(entry) : int(entry) + 1])
        else:
            matches = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        if len(matches) != 1:
            break
        chosen.append(matches[0])
    return chosen


def visible_gpus(nvml: Any) -> list[ListedGpu]:
    """The GPUs of an open session, in CUDA's order under CUDA_VISIBLE_DEVICES."""
    return select_visible(listed_gpus(nvml), os.environ.get("CUDA_VISIBLE_DEVICES"))


def listed_gpus(nvml: Any) -> list[ListedGpu]:
    """All GPUs of an open session, and the parts of GPUs that CUDA_VISIBLE_DEVICES names."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
    # A part of a GPU is not among those counted: it is known by its name only.
    entries = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    parts = [entry for entry in entries if entry.startswith("MIG-")]
    handles += [nvml.nvmlDeviceGetHandleByUUID(part) for part in parts]
    return [
        ListedGpu(_text(nvml.nvmlDeviceGetUUID(each)), _text(nvml.nvmlDeviceGetName(each)), each)
        for each in handles
    ]


class UnavailableError(Exception):
    """NVML cannot answer; the text says why."""


@contextmanager
def session() -> Iterator[Any]:
    """NVML, initialised and shut down again; whatever it refuses is an UnavailableError."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML: {error}") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML: {error}") from error
    finally:
        # A driver that went away meanwhile cannot be left in good order.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _read(nvml: Any, gpu: ListedGpu) -> GpuMemory:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
    return GpuMemory(gpu.uuid, gpu.name, memory.total / MIB, memory.free / MIB)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
