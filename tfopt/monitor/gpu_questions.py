"""Define the questions that NVML is asked of one GPU, one for each metric.

Of a part of a GPU (MIG), memory, processes and utilisation are those of the part; all else is that
of the whole GPU, which the part shares with its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from tfopt.monitor.polling import Question, Rate, Shared
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

# NVML sums a counter over all links where the link is this one.
_ALL_LINKS = 2**32 - 1
_KIB = 1024


def questions(
    nvml: Any, gpu: ListedGpu, process_id: int, clock: Callable[[], float]
) -> dict[str, Question]:
    """Return the questions by metric, with ``clock_reasons`` and ``processes``."""
    handle = gpu.handle
    board = handle if gpu.whole is None else gpu.whole.handle
    memory = Shared(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    busy = Shared(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    listed = Shared(lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    # Drivers, and pynvml, drop the older of two names.
    clock_reasons = _NewestName(
        nvml,
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        board,
    )
    temperature = _NewestName(
        nvml,
        ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
        board,
        nvml.NVML_TEMPERATURE_GPU,
    )

    def field(name: str, *scope: int) -> Any:
        return _field(nvml, board, getattr(nvml, f"NVML_FI_DEV_{name}"), *scope)

    def ecc(kind: int) -> Any:
        return nvml.nvmlDeviceGetTotalEccErrors(board, kind, nvml.NVML_VOLATILE_ECC)

    def pcie_mib(direction: int) -> float:
        return float(nvml.nvmlDeviceGetPcieThroughput(board, direction) / _KIB)

    return {
        "device_mib": lambda: memory.new().used / MIB,
        "total_mib": lambda: memory.last().total / MIB,
        "process_mib": lambda: _held(listed.new(), process_id) / MIB,
        "utilisation_percent": lambda: busy.new().gpu,
        "memory_utilisation_percent": lambda: busy.last().memory,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(board, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_MEM),
        "temperature_c": temperature,
        "memory_temperature_c": lambda: field("MEMORY_TEMP"),
        "slowdown_temperature_c": lambda: nvml.nvmlDeviceGetTemperatureThreshold(
            board, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(board) / 1000,
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(board) / 1000,
        "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(board) / 1000,
        "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(board),
        "pcie_max_generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(board),
        "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(board),
        "pcie_max_width": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(board),
        "pcie_received_mib_per_s": lambda: pcie_mib(nvml.NVML_PCIE_UTIL_RX_BYTES),
        "pcie_sent_mib_per_s": lambda: pcie_mib(nvml.NVML_PCIE_UTIL_TX_BYTES),
        "nvlinks": lambda: _active_links(nvml, board),
        "nvlink_received_mib_per_s": Rate(
            lambda: field("NVLINK_THROUGHPUT_DATA_RX", _ALL_LINKS) / _KIB, clock
        ),
        "nvlink_sent_mib_per_s": Rate(
            lambda: field("NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS) / _KIB, clock
        ),
        "ecc_corrected": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "fan_percent": lambda: nvml.nvmlDeviceGetFanSpeed(board),
        "clock_reasons": lambda: _clock_reasons(clock_reasons()),
        "processes": lambda: _processes(nvml, listed.last()),
    }


class _NewestName:
    """Call NVML by the newest of several names that this driver, and this pynvml, has."""

    def __init__(self, nvml: Any, names: Sequence[str], *arguments: Any) -> None:
        self._names = names
        self._functions = [getattr(nvml, name) for name in names if hasattr(nvml, name)]
        self._arguments = arguments
        self._unknown = nvml.NVMLError_FunctionNotFound

    def __call__(self) -> Any:
        for function in tuple(self._functions):
            try:
                return function(*self._arguments)
            except self._unknown:
                self._functions.remove(function)
        raise UnavailableError(f"NVML: this driver has no {' or '.join(self._names)}")


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


def _held(processes: Sequence[Any], process_id: int) -> int:
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


def _field(nvml: Any, handle: Any, number: int, *scope: int) -> Any:
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(number, *scope) if scope else number])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    members = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    }
    return getattr(value.value, members[value.valueType])


def _active_links(nvml: Any, handle: Any) -> int:
    active = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
        except nvml.NVMLError as error:
            # NVML has no call for how many links a GPU has: it refuses the first that is not there.
            over = (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED)
            if link == 0 or error.value not in over:
                raise
            break
    return active


def _clock_reasons(mask: int) -> tuple[ClockReason, ...]:
    found = [reason for bit, reason in _CLOCK_REASONS.items() if mask & bit]
    unknown = mask & ~sum(_CLOCK_REASONS)
    if unknown:
        found.append(ClockReason(f"a reason unknown to tfopt (0x{unknown:x})", throttles=False))
    return tuple(found)
