"""Answer in the place of NVIDIA's library (libnvidia-ml), where the real ``pynvml`` calls into C.

What passes on it has not run on the hardware.
"""

# ruff: noqa: N802 (the names are those in the library)

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pynvml

MIB = 1024**2


@dataclass
class StandInGpu:
    """One GPU; ``refuses`` maps a function's name to the code that it returns instead."""

    uuid: str = "GPU-aaaa"
    name: str = "NVIDIA Stand-In"
    used: int = 3000 * MIB
    total: int = 8000 * MIB
    processes: dict[int, int] = field(default_factory=dict)
    utilisation: int = 87
    clocks: dict[int, int] = field(default_factory=lambda: {1: 1500, 2: 2600})
    temperature: int = 61
    power_mw: int = 250_000
    energy_mj: int = 10_000_000
    reasons: int = 0
    refuses: dict[str, int] = field(default_factory=dict)


class StandInDriver:
    """The library: ``unknown`` names functions that this version does not have."""

    def __init__(self) -> None:
        self.gpus = [StandInGpu()]
        self.unknown: set[str] = set()
        self.sessions = 0
        self.opened = 0

    def function(self, name: str) -> Any:
        """Return what pynvml gets for the name of a function in C."""
        answer = getattr(self, f"_{name}", None)
        if answer is None or name in self.unknown:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

        def call(*arguments: Any) -> int:
            if self.sessions == 0 and name != "nvmlInitWithFlags":
                return pynvml.NVML_ERROR_UNINITIALIZED
            handle = arguments[0] if arguments else None
            if isinstance(handle, pynvml.c_nvmlDevice_t):
                gpu = self.gpus[ctypes.c_void_p.from_buffer(handle).value - 1]
                if name in gpu.refuses:
                    return gpu.refuses[name]
                arguments = (gpu, *arguments[1:])
            # A function that names no code has succeeded.
            return answer(*arguments) or pynvml.NVML_SUCCESS

        return call

    def _nvmlInitWithFlags(self, flags: int) -> None:
        self.sessions += 1
        self.opened += 1

    def _nvmlShutdown(self) -> None:
        self.sessions -= 1

    def _nvmlSystemGetDriverVersion(self, text: Any, length: Any) -> None:
        text.value = b"580.65.06"

    def _nvmlSystemGetCudaDriverVersion_v2(self, number: Any) -> None:
        number._obj.value = 12080

    def _nvmlDeviceGetCount_v2(self, count: Any) -> None:
        count._obj.value = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> None:
        ctypes.c_void_p.from_buffer(handle._obj).value = index.value + 1

    def _nvmlDeviceGetUUID(self, gpu: StandInGpu, text: Any, length: Any) -> None:
        text.value = gpu.uuid.encode()

    def _nvmlDeviceGetName(self, gpu: StandInGpu, text: Any, length: Any) -> None:
        text.value = gpu.name.encode()

    def _nvmlDeviceGetMemoryInfo(self, gpu: StandInGpu, memory: Any) -> None:
        memory._obj.total, memory._obj.used = gpu.total, gpu.used
        memory._obj.free = gpu.total - gpu.used

    def _nvmlDeviceGetComputeRunningProcesses_v3(
        self, gpu: StandInGpu, count: Any, listed: Any
    ) -> int | None:
        room, count._obj.value = count._obj.value, len(gpu.processes)
        if room < len(gpu.processes):
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        for place, (process, held) in enumerate(gpu.processes.items()):
            listed[place].pid, listed[place].usedGpuMemory = process, held
        return None

    def _nvmlDeviceGetUtilizationRates(self, gpu: StandInGpu, rates: Any) -> None:
        rates._obj.gpu = gpu.utilisation

    def _nvmlDeviceGetClockInfo(self, gpu: StandInGpu, kind: Any, clock: Any) -> None:
        clock._obj.value = gpu.clocks[kind.value]

    def _nvmlDeviceGetTemperature(self, gpu: StandInGpu, which: Any, value: Any) -> None:
        value._obj.value = gpu.temperature

    def _nvmlDeviceGetPowerUsage(self, gpu: StandInGpu, value: Any) -> None:
        value._obj.value = gpu.power_mw

    def _nvmlDeviceGetTotalEnergyConsumption(self, gpu: StandInGpu, value: Any) -> None:
        value._obj.value = gpu.energy_mj

    def _nvmlDeviceGetCurrentClocksEventReasons(self, gpu: StandInGpu, value: Any) -> None:
        value._obj.value = gpu.reasons
