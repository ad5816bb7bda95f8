"""Define the questions that NVML is asked of one GPU, one for each metric.

A part of a GPU (MIG) has its own memory, processes and utilisation. Clocks, power and temperature
are those of the whole board: they are asked of a divided GPU, and not of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from tfopt.monitor.polling import Question, Shared
from tfopt.monitor.readings import ClockReason, GpuProcess
from tfopt.monitor.visible_gpus import MIB, ListedGpu, UnavailableError

# By NVML's bit. The last two have no constant in newer NVML.
_CLOCK_REASONS: Mapping[int, ClockReason] = {
    0x1: ClockReason("nothing to do (GpuIdle)", throttles=False),
    0x2: ClockReason("clocks set by somebody (ApplicationsClocksSetting)", throttles=False),
    0x4: ClockReason("the power limit (SwPowerCap)", throttles=True),
    0x8: ClockReason("a slowdown by the hardware (HwSlowdown)", throttles=True),
    0x10: ClockReason("in step with another GPU (SyncBoost)", throttles=False),
    0x20: ClockReason("heat, seen by the driver (SwThermalSlowdown)", throttles=True),
    0x40: ClockReason("heat, seen by the hardware (HwThermalSlowdown)", throttles=True),
    0x80: ClockReason("a power brake from outside (HwPowerBrakeSlowdown)", throttles=True),
    0x100: ClockReason("the display's clocks (DisplayClockSetting)", throttles=False),
    0x200: ClockReason("the board's limit (BoardLimit)", throttles=True),
    0x400: ClockReason("the voltage's limit (Reliability)", throttles=False),
}


def questions(nvml: Any, gpu: ListedGpu, process_id: int | None) -> dict[str, Question]:
    """Return the questions by metric, with ``clock_reasons`` and ``processes``."""
    if gpu.divided:
        return _of_the_board(nvml, gpu.handle)
    own = _of_a_part(nvml, gpu.handle, process_id)
    return own if gpu.whole is not None else own | _of_the_board(nvml, gpu.handle)


def _of_a_part(nvml: Any, handle: Any, process_id: int | None) -> dict[str, Question]:
    memory = Shared(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    busy = Shared(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    listed = Shared(lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    return {
        "device_mib": lambda: memory.new().used / MIB,
        "total_mib": lambda: memory.last().total / MIB,
        "process_mib": lambda: _held(listed.new(), process_id) / MIB,
        "utilisation_percent": lambda: busy.new().gpu,
        "memory_utilisation_percent": lambda: busy.last().memory,
        "processes": lambda: _processes(nvml, listed.last()),
    }


def _of_the_board(nvml: Any, handle: Any) -> dict[str, Question]:
    return {
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "memory_temperature_c": lambda: _memory_temperature(nvml, handle),
        "slowdown_temperature_c": lambda: nvml.nvmlDeviceGetTemperatureThreshold(
            handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        "fan_percent": lambda: nvml.nvmlDeviceGetFanSpeed(handle),
        "clock_reasons": lambda: _clock_reasons(
            nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        ),
    }


def _processes(nvml: Any, listed: Sequence[Any]) -> tuple[GpuProcess, ...]:
    processes = [
        GpuProcess(
            each.pid,
            _name_of(nvml, each.pid),
            None if each.usedGpuMemory is None else each.usedGpuMemory / MIB,
        )
        for each in listed
    ]
    return tuple(sorted(processes, key=lambda process: (-(process.mib or 0), process.pid)))


def _name_of(nvml: Any, process_id: int) -> str | None:
    try:
        return PurePosixPath(nvml.nvmlSystemGetProcessName(process_id)).name or None
    except nvml.NVMLError:
        return None  # it has ended, or belongs to another user


def _held(processes: Sequence[Any], process_id: int | None) -> int:
    if process_id is None:
        raise UnavailableError("no process is watched")
    own = [process.usedGpuMemory for process in processes if process.pid == process_id]
    if processes and not own:
        # Zero would be a claim: the driver's numbers are those of outside of a container.
        raise UnavailableError(
            f"NVML lists {len(processes)} process{'es' if len(processes) > 1 else ''} here and not "
            "this one, which has not used this GPU yet or is in a container that counts anew"
        )
    if any(held is None for held in own):
        raise UnavailableError("NVML: the driver does not report the memory of single processes")
    return sum(own)


def _memory_temperature(nvml: Any, handle: Any) -> int:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_MEMORY_TEMP])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def _clock_reasons(mask: int) -> tuple[ClockReason, ...]:
    found = [reason for bit, reason in _CLOCK_REASONS.items() if mask & bit]
    unknown = mask & ~sum(_CLOCK_REASONS)
    if unknown:
        found.append(ClockReason(f"a reason unknown to tfopt (0x{unknown:x})", throttles=False))
    return tuple(found)
