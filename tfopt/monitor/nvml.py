"""What NVML tells of the GPUs of this machine.

Guarantees: never raises for a missing driver, library or permission; says in words why there
is nothing to tell; no session with NVML outlasts a call.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tfopt.monitor.session import MIB, UnavailableError, session, text
from tfopt.monitor.visible import ListedGpu, visible_gpus


@dataclass(frozen=True)
class GpuMemory:
    """One GPU's memory at a moment."""

    uuid: str
    name: str
    total_mib: float
    free_mib: float


def gpu_memories() -> list[GpuMemory] | str:
    """The GPUs in CUDA's order under CUDA_VISIBLE_DEVICES, or why there are none to read.

    Those that are lost are left out, as CUDA leaves them out.
    """
    try:
        with session() as nvml:
            gpus = visible_gpus(nvml)
            told = [memory for gpu in gpus if (memory := _read(nvml, gpu)) is not None]
            if gpus and not told:
                return next((gpu.lost for gpu in gpus if gpu.lost), "NVML: every GPU is lost")
            return told
    except UnavailableError as error:
        return str(error)


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    try:
        with session() as nvml:
            return text(nvml.nvmlSystemGetDriverVersion())
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


def _read(nvml: Any, gpu: ListedGpu) -> GpuMemory | None:
    """None of one that is lost."""
    if gpu.lost is not None:
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
    except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired):
        return None
    return GpuMemory(gpu.uuid, gpu.name, memory.total / MIB, memory.free / MIB)
