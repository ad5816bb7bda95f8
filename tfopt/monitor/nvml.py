"""Read what NVML knows of the GPUs of this machine: names, memory, links, driver.

No function here raises: without a driver, a library or a permission it returns why, or None.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tfopt.monitor.visible_gpus import (
    MIB,
    ListedGpu,
    UnavailableError,
    listed_gpus,
    session,
    visible_gpus,
)

_PROHIBITED = 2

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class DeviceFacts:
    """What does not change of a GPU while it trains; None where the driver does not report it.

    Attributes:
        capability: CUDA's compute capability, such as (8, 0).
        prohibited: Whether its compute mode forbids computations.
        lost: NVML's words, where it lists this GPU and cannot reach it; the rest is None then.
    """

    uuid: str
    name: str
    capability: tuple[int, int] | None
    total_mib: float | None
    free_mib: float | None
    prohibited: bool | None
    lost: str | None = None


def device_facts() -> list[DeviceFacts] | str:
    """Return the GPUs under CUDA_VISIBLE_DEVICES in CUDA's order, or why there are none."""
    try:
        with session() as nvml:
            return [_facts(nvml, gpu) for gpu in visible_gpus(nvml)]
    except UnavailableError as error:
        return str(error)


def listed_uuids() -> list[str]:
    """Return all GPUs that the driver lists, hidden or not; none without a driver."""
    return _in_session(lambda nvml: [gpu.uuid for gpu in listed_gpus(nvml)]) or []


def driver_version() -> str | None:
    """Return the NVIDIA driver's version; None without a driver."""
    return _in_session(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()))


def newest_cuda() -> str | None:
    """Return the newest CUDA that the driver can run; None without a driver."""
    number = _in_session(lambda nvml: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _in_session(ask: Callable[[Any], _Answer]) -> _Answer | None:
    try:
        with session() as nvml:
            return ask(nvml)
    except UnavailableError:
        return None


def _facts(nvml: Any, gpu: ListedGpu) -> DeviceFacts:
    lost, answers = gpu.lost, dict[str, Any]()
    for name in ("MemoryInfo", "CudaComputeCapability", "ComputeMode"):
        try:
            if lost is None:
                answers[name] = getattr(nvml, f"nvmlDeviceGet{name}")(gpu.handle)
        # A lost GPU may still have a name, but no memory.
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
            lost, answers = f"NVML: {error}", {}
        except nvml.NVMLError:
            continue
    memory, mode = answers.get("MemoryInfo"), answers.get("ComputeMode")
    return DeviceFacts(
        uuid=gpu.uuid,
        name=gpu.name,
        capability=answers.get("CudaComputeCapability"),
        total_mib=None if memory is None else memory.total / MIB,
        free_mib=None if memory is None else memory.free / MIB,
        prohibited=None if mode is None else mode == _PROHIBITED,
        lost=lost,
    )


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU at one moment."""

    uuid: str
    name: str
    total_mib: float
    free_mib: float


def gpu_memories() -> list[GpuMemory] | str:
    """Return the memory of the GPUs under CUDA_VISIBLE_DEVICES, or why there are none.

    Lost GPUs are left out, as CUDA leaves them out, and those that do not report it.
    """
    facts = device_facts()
    if isinstance(facts, str):
        return facts
    known = [
        GpuMemory(gpu.uuid, gpu.name, gpu.total_mib, gpu.free_mib)
        for gpu in facts
        if gpu.total_mib is not None and gpu.free_mib is not None
    ]
    if facts and not known:
        return facts[0].lost or "NVML: no GPU reports its memory"
    return known


def why_no_gpu() -> str:
    """Return in one line why TensorFlow sees no GPU here, as far as is known."""
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
