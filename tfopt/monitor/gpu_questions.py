"""What NVML is asked of one GPU: a question for each metric of the table, and two more.

Guarantees: of a part of a GPU (MIG), memory, processes and utilisation are those of the part, or
not told; clocks, power, temperatures, links and errors are those of the whole GPU, which a part
shares with its neighbours. A question raises what NVML raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from tfopt.monitor.asking import Rate, Shared
from tfopt.monitor.readings import ClockReason, GpuProcess
from tfopt.monitor.session import MIB, UnavailableError, text
from tfopt.monitor.visible import ListedGpu

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

# NVML sums a counter over all links where the link is this one.
_ALL_LINKS = 2**32 - 1


def questions(
    nvml: Any, gpu: ListedGpu, process_id: int, clock: Callable[[], float]
) -> dict[str, Callable[[], Any]]:
    """By metric, with ``clock_reasons`` and ``processes``; answers are in the source's unit."""
    handle = gpu.handle
    board = handle if gpu.whole is None else gpu.whole.handle
    processes = _NewestWay(nvml, _PROCESSES, handle)
    # One answer of NVML's serves two metrics: it is asked for the first one.
    memory = Shared(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    busy = Shared(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    listed = Shared(processes)
    names = _ProcessNames(nvml)
    reasons = _known_reasons(nvml)
    held_down = _NewestWay(nvml, _HELD_DOWN, board)
    temperature = _NewestWay(nvml, _TEMPERATURE, board, nvml.NVML_TEMPERATURE_GPU)

    def field(name: str, *scope: int) -> Any:
        return _field(nvml, board, getattr(nvml, f"NVML_FI_DEV_{name}"), *scope)

    def ecc(kind: int) -> Any:
        return nvml.nvmlDeviceGetTotalEccErrors(board, kind, nvml.NVML_VOLATILE_ECC)

    return {
        "device_mib": lambda: memory.new().used,
        "total_mib": lambda: memory.last().total,
        "process_mib": lambda: _held(listed.new(), process_id),
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
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(board),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(board),
        "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(board),
        "pcie_generation": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(board),
        "pcie_max_generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(board),
        "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(board),
        "pcie_max_width": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(board),
        "pcie_received_mib_per_s": lambda: nvml.nvmlDeviceGetPcieThroughput(
            board, nvml.NVML_PCIE_UTIL_RX_BYTES
        ),
        "pcie_sent_mib_per_s": lambda: nvml.nvmlDeviceGetPcieThroughput(
            board, nvml.NVML_PCIE_UTIL_TX_BYTES
        ),
        "nvlinks": lambda: _active_links(nvml, board),
        "nvlink_received_mib_per_s": Rate(
            lambda: field("NVLINK_THROUGHPUT_DATA_RX", _ALL_LINKS), clock
        ),
        "nvlink_sent_mib_per_s": Rate(
            lambda: field("NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS), clock
        ),
        "ecc_corrected": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "ecc_uncorrected": lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "fan_percent": lambda: nvml.nvmlDeviceGetFanSpeed(board),
        "clock_reasons": lambda: _named(held_down(), reasons),
        "processes": lambda: names.told(listed.last()),
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


class _ProcessNames:
    """Names of processes as the driver tells them, asked once for each."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._names: dict[int, str | None] = {}

    def told(self, listed: Sequence[Any]) -> tuple[GpuProcess, ...]:
        self._names = {each.pid: self._name(each.pid) for each in listed}
        told = [
            GpuProcess(each.pid, self._names[each.pid], _mib(each.usedGpuMemory)) for each in listed
        ]
        return tuple(sorted(told, key=lambda process: (-(process.mib or 0), process.pid)))

    def _name(self, process_id: int) -> str | None:
        if process_id in self._names:
            return self._names[process_id]
        try:
            told = text(self._nvml.nvmlSystemGetProcessName(process_id))
        except self._nvml.NVMLError:
            return None  # gone again, or somebody else's
        return PurePosixPath(told).name or None


def _mib(held: int | None) -> float | None:
    return None if held is None else held / MIB


def _held(processes: Sequence[Any], process_id: int) -> int:
    own = [process.usedGpuMemory for process in processes if process.pid == process_id]
    if processes and not own:
        # Zero would be a claim: the driver's numbers are those of outside of a container.
        raise UnavailableError(
            f"NVML lists {len(processes)} process{'es' if len(processes) > 1 else ''} here and not "
            "this one, which has not used this GPU yet or is in a container that counts anew"
        )
    if any(held is None for held in own):
        raise UnavailableError("NVML: the driver does not tell the memory of single processes")
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
