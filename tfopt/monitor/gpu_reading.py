"""One GPU asked again and again inside an open NVML session.

Guarantees: a reading never raises; what this GPU, its driver or a part of a GPU (MIG) does not
tell is None, with NVML's words in ``missing``; what it can never tell is asked only once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfopt.monitor.nvml import MIB, ListedGpu, UnavailableError
from tfopt.monitor.readings import ClockReason, GpuReading

# What NVML calls each reason, what it means, and whether heat, power or hardware holds the clocks.
_REASONS: Mapping[str, tuple[str, bool]] = {
    "GpuIdle": ("nothing to do", False),
    "ApplicationsClocksSetting": ("clocks set by somebody", False),
    "SwPowerCap": ("the power limit", True),
    "HwSlowdown": ("a slowdown by the hardware", True),
    "SyncBoost": ("in step with another GPU", False),
    "SwThermalSlowdown": ("heat, seen by the driver", True),
    "HwThermalSlowdown": ("heat, seen by the hardware", True),
    "HwPowerBrakeSlowdown": ("a power brake from outside", True),
    "DisplayClockSetting": ("the display's clocks", False),
    "BoardLimit": ("the board's limit", True),
    "Reliability": ("the voltage's limit", False),
}

# Names of one question, the newest first: drivers and pynvml drop the old ones.
_PROCESSES = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)
_HELD_DOWN = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
_TEMPERATURE = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")


class WatchedGpu:
    """A GPU with the metrics that are asked of it; ``missing`` grows as it refuses some."""

    def __init__(self, nvml: Any, gpu: ListedGpu, process_id: int) -> None:
        self.uuid = gpu.uuid
        self.name = gpu.name
        self.missing: dict[str, str] = {}
        self._asked = _metrics(nvml, gpu.handle, process_id)
        # What may be told again at the next moment.
        self._passing = (nvml.NVMLError_Timeout, nvml.NVMLError_Unknown, nvml.NVMLError_InUse)

    def read(self) -> GpuReading:
        """Everything that this GPU tells now."""
        return GpuReading(**{name: self._answer(name) for name in tuple(self._asked)})

    def _answer(self, name: str) -> Any:
        try:
            return self._asked[name]()
        except UnavailableError as error:
            self.missing[name] = str(error)
        except self._passing as error:
            self.missing[name] = f"NVML: {error}"
        except Exception as error:  # a measurement goes on, whatever breaks in a driver
            self.missing[name] = f"NVML: {error}"
            del self._asked[name]
        return None


def _metrics(nvml: Any, handle: Any, process_id: int) -> dict[str, Callable[[], Any]]:
    reasons = _known_reasons(nvml)
    processes = _NewestWay(nvml, _PROCESSES, handle)
    held_down = _NewestWay(nvml, _HELD_DOWN, handle)
    temperature = _NewestWay(nvml, _TEMPERATURE, handle, nvml.NVML_TEMPERATURE_GPU)
    return {
        "device_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used / MIB,
        "process_mib": lambda: _held_mib(processes(), process_id),
        "utilisation_percent": lambda: float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "sm_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_clock_mhz": lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "temperature_c": lambda: float(temperature()),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        "clock_reasons": lambda: _named(held_down(), reasons),
    }


class _NewestWay:
    """Asks by the newest of several names that this driver, and this pynvml, knows."""

    def __init__(self, nvml: Any, names: Sequence[str], *arguments: Any) -> None:
        self._names = names
        self._ways = [getattr(nvml, name) for name in names if hasattr(nvml, name)]
        self._arguments = arguments
        self._unknown = nvml.NVMLError_FunctionNotFound

    def __call__(self) -> Any:
        for way in tuple(self._ways):
            try:
                return way(*self._arguments)
            except self._unknown:
                self._ways.remove(way)
        raise UnavailableError(f"NVML: this driver has no {' or '.join(self._names)}")


def _held_mib(processes: list[Any], process_id: int) -> float:
    own = [process.usedGpuMemory for process in processes if process.pid == process_id]
    if any(held is None for held in own):
        raise UnavailableError("NVML: the driver does not tell the memory of single processes")
    return float(sum(own)) / MIB


def _known_reasons(nvml: Any) -> list[tuple[int, ClockReason]]:
    """The reasons that this NVML has a constant for, whose names changed once."""
    known = []
    for name, (meaning, throttles) in _REASONS.items():
        bit = getattr(nvml, f"nvmlClocksEventReason{name}", None)
        bit = bit or getattr(nvml, f"nvmlClocksThrottleReason{name}", None)
        if bit is not None:
            known.append((bit, ClockReason(f"{meaning} ({name})", throttles)))
    return known


def _named(mask: int, known: list[tuple[int, ClockReason]]) -> tuple[ClockReason, ...]:
    found = [reason for bit, reason in known if mask & bit]
    for bit, _ in known:
        mask &= ~bit
    if mask:
        found.append(ClockReason(f"a reason unknown to tfopt (0x{mask:x})", throttles=False))
    return tuple(found)
