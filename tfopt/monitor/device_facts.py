"""What NVML tells of a GPU that does not change while it trains: for ``tfopt doctor``.

Guarantees: never raises; what a GPU or its driver does not tell is None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tfopt.monitor.session import MIB, UnavailableError, session
from tfopt.monitor.visible import ListedGpu, listed_gpus, visible_gpus

# How two GPUs reach each other, by NVML's number for their nearest common ancestor.
_WAYS = {
    0: "the same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one PCIe host bridge",
    40: "the CPU of one NUMA node",
    50: "the link between CPUs",
}
_PROHIBITED = 2


@dataclass(frozen=True)
class DeviceFacts:
    """One visible GPU, in CUDA's order.

    Attributes:
        capability: CUDA's compute capability, such as (8, 0).
        pci: Its address in ``/sys/bus/pci/devices``, such as "0000:3b:00.0".
        prohibited: Whether its compute mode forbids computations.
        lost: NVML's words, where it lists this GPU and cannot reach it: nothing else is told then.
    """

    uuid: str
    name: str
    capability: tuple[int, int] | None
    pci: str | None
    total_mib: float | None
    free_mib: float | None
    prohibited: bool | None
    lost: str | None = None


def device_facts() -> list[DeviceFacts] | str:
    """The GPUs under CUDA_VISIBLE_DEVICES, or why there are none to read."""
    try:
        with session() as nvml:
            return [_facts(nvml, gpu) for gpu in visible_gpus(nvml)]
    except UnavailableError as error:
        return str(error)


def listed_uuids() -> list[str]:
    """All GPUs that the driver lists, hidden or not; none without a driver."""
    try:
        with session() as nvml:
            return [gpu.uuid for gpu in listed_gpus(nvml)]
    except UnavailableError:
        return []


def ways_between() -> dict[tuple[int, int], str]:
    """How each two visible GPUs reach each other, where the driver tells."""
    try:
        with session() as nvml:
            there = [(n, g.handle) for n, g in enumerate(visible_gpus(nvml)) if g.lost is None]
            told = {
                (n, m): _asked(nvml, "nvmlDeviceGetTopologyCommonAncestor", first, second)
                for (n, first), (m, second) in combinations(there, 2)
            }
    except UnavailableError:
        return {}
    return {pair: _WAYS[way] for pair, way in told.items() if way in _WAYS}


def _facts(nvml: Any, gpu: ListedGpu) -> DeviceFacts:
    lost = gpu.lost or _why_lost(nvml, gpu.handle)
    if lost is not None:
        return DeviceFacts(gpu.uuid, gpu.name, None, None, None, None, None, lost)
    capability = _asked(nvml, "nvmlDeviceGetCudaComputeCapability", gpu.handle)
    memory = _asked(nvml, "nvmlDeviceGetMemoryInfo", gpu.handle)
    mode = _asked(nvml, "nvmlDeviceGetComputeMode", gpu.handle)
    pci = _asked(nvml, "nvmlDeviceGetPciInfo", gpu.handle)
    return DeviceFacts(
        uuid=gpu.uuid,
        name=gpu.name,
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        pci=None if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        total_mib=None if memory is None else memory.total / MIB,
        free_mib=None if memory is None else memory.free / MIB,
        prohibited=None if mode is None else mode == _PROHIBITED,
    )


def _why_lost(nvml: Any, handle: Any) -> str | None:
    """A GPU that is lost may still tell its name: memory it does not."""
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
        return f"NVML: {error}"
    except nvml.NVMLError:
        return None
    return None


def _asked(nvml: Any, name: str, *arguments: Any) -> Any:
    question: Callable[..., Any] | None = getattr(nvml, name, None)
    try:
        return None if question is None else question(*arguments)
    except nvml.NVMLError:
        return None
