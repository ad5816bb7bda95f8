"""Read GPUs in one session with NVML; a lost GPU keeps its index, with readings without values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import PurePosixPath
from typing import Any, Literal

from tfopt.data.host_memory import MIB
from tfopt.monitor.nvml import (
    ListedGpu,
    UnavailableError,
    error_text,
    listed_gpus,
    order_is_known,
    session,
    visible_gpus,
)
from tfopt.monitor.polling import Poller, Question
from tfopt.monitor.readings import (
    GPU_METRICS,
    ClockReason,
    GpuProcess,
    GpuReading,
    SampledGpu,
)

# By NVML's bit; the last two have no constant in newer NVML.
_CLOCK_REASONS: Mapping[int, ClockReason] = {
    0x1: ClockReason("nothing to do (GpuIdle)"),
    0x2: ClockReason("clocks set by a user (ApplicationsClocksSetting)"),
    0x4: ClockReason("the power limit (SwPowerCap)", "power"),
    0x8: ClockReason("a slowdown by the hardware (HwSlowdown)", "hardware"),
    0x10: ClockReason("in step with another GPU (SyncBoost)"),
    0x20: ClockReason("heat, detected by the driver (SwThermalSlowdown)", "heat"),
    0x40: ClockReason("heat, detected by the hardware (HwThermalSlowdown)", "heat"),
    0x80: ClockReason("an external power brake (HwPowerBrakeSlowdown)", "hardware"),
    0x100: ClockReason("the display's clocks (DisplayClockSetting)"),
    0x200: ClockReason("the board's limit (BoardLimit)", "hardware"),
    0x400: ClockReason("the voltage's limit (Reliability)"),
}

Wanted = Collection[int] | Literal["visible", "all"]


class GpuWatch:
    """Read the GPUs of one sampler; ``no_gpu_reason`` is the reason if there are none."""

    def __init__(self, wanted: Wanted) -> None:
        self._stack = ExitStack()
        self._gpus: list[tuple[ListedGpu, Poller]] = []
        self.no_gpu_reason: str | None = None
        if not isinstance(wanted, str) and not wanted:
            self.no_gpu_reason = "no GPU is in use"
            return
        try:
            nvml = self._stack.enter_context(session())
            for gpu in _chosen(nvml, wanted):
                poller = Poller({} if gpu.lost else _questions(nvml, gpu.handle), _why)
                if gpu.lost:
                    poller.missing.update({metric.name: gpu.lost for metric in GPU_METRICS})
                self._gpus.append((gpu, poller))
        except Exception as error:  # of any kind, from a driver
            self.no_gpu_reason = _why(error)
            self.close()

    def read(self) -> tuple[GpuReading, ...]:
        """Return a reading of each GPU."""
        return tuple(GpuReading(**poller.values()) for _, poller in self._gpus)

    def gpus(self) -> tuple[SampledGpu, ...]:
        """Return the GPUs, with the metrics that each does not report."""
        return tuple(
            SampledGpu(gpu.uuid, gpu.name, dict(poller.missing)) for gpu, poller in self._gpus
        )

    def close(self) -> None:
        """End the session."""
        with suppress(Exception):  # of a lost driver
            self._stack.close()


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, UnavailableError) else error_text(error)


def _chosen(nvml: Any, wanted: Wanted) -> list[ListedGpu]:
    """Return the wanted GPUs; raise UnavailableError if they are ambiguous."""
    listed = listed_gpus(nvml)
    if wanted == "all":
        return listed
    if not order_is_known(listed):
        raise UnavailableError(
            "CUDA numbers GPUs of several models from the fastest, and NVML along the bus: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    visible = visible_gpus(nvml)
    if not visible:
        raise UnavailableError("NVML lists no visible GPU")
    if isinstance(wanted, str):
        return visible
    if max(wanted) >= len(visible):
        raise UnavailableError(
            f"NVML lists {len(visible)} visible GPU(s), and not number {max(wanted)}"
        )
    return [visible[place] for place in wanted]


def _questions(nvml: Any, handle: Any) -> dict[str, Question]:
    """Return a function for each metric, which raises if the GPU or its part has no value."""

    def memory() -> Any:
        return nvml.nvmlDeviceGetMemoryInfo(handle)

    def busy() -> Any:
        return nvml.nvmlDeviceGetUtilizationRates(handle)

    return {
        "device_mib": lambda: memory().used / MIB,
        "total_mib": lambda: memory().total / MIB,
        "utilisation_percent": lambda: busy().gpu,
        "memory_utilisation_percent": lambda: busy().memory,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
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
        "processes": lambda: _processes(nvml, handle),
    }


def _processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    processes = [
        GpuProcess(
            process.pid,
            _name_of(nvml, process.pid),
            None if process.usedGpuMemory is None else process.usedGpuMemory / MIB,
        )
        for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    ]
    return tuple(sorted(processes, key=lambda process: (-(process.mib or 0), process.pid)))


def _name_of(nvml: Any, process_id: int) -> str | None:
    try:
        return PurePosixPath(nvml.nvmlSystemGetProcessName(process_id)).name or None
    except nvml.NVMLError:
        return None  # it has ended, or belongs to another user


def _clock_reasons(mask: int) -> tuple[ClockReason, ...]:
    return tuple(reason for bit, reason in _CLOCK_REASONS.items() if mask & bit)
