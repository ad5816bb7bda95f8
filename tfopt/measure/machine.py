"""Describe the processor, and what GPUs did while a process had its turns.

Every figure is of samples between the first turn and the end; a metric that a GPU
did not report is None, and the state's notes say why.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from tfopt.files import text_of
from tfopt.monitor.readings import GpuReading, Recording, SampledGpu
from tfopt.report.timed_process import GpuState

# What kernels are chosen by: vector and matrix units, and the half precisions.
_MATTERS = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "fphp", "i8mm", "neon", "sve")


def cpu_model() -> str:
    """Return the processor's name, as the system has it."""
    return _cpu_field("model name") or platform.processor() or "unknown"


def cpu_flags() -> tuple[str, ...]:
    """Return the flags that change what a kernel can do; empty where the system lists none."""
    flags = (_cpu_field("flags") or _cpu_field("Features")).split()
    return tuple(sorted(flag for flag in set(flags) if flag.startswith(_MATTERS)))


def _cpu_field(name: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo."""
    for line in text_of(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


# Of what a GPU may not tell, what a report shows: the reason is noted.
_SHOWN = frozenset(GpuState.__dataclass_fields__) | {"clock_reasons"}


def gpu_states(recording: Recording) -> tuple[GpuState, ...]:
    """Return each GPU's state over these samples."""
    return tuple(
        _state(gpu, [sample.gpus[place] for sample in recording.samples])
        for place, gpu in enumerate(recording.gpus)
    )


def _state(gpu: SampledGpu, readings: Sequence[GpuReading]) -> GpuState:
    def over(metric: str, sum_up: Callable[[list[float]], float]) -> float | None:
        known = [v for each in readings if (v := getattr(each, metric)) is not None]
        return round(sum_up(known), 1) if known else None

    counted = [each.energy_j for each in readings]
    first, last = (counted[0], counted[-1]) if counted else (None, None)
    grew = first is not None and last is not None and last > first
    # Every reason that was seen in any sample, in the order of the first time.
    reasons = dict.fromkeys(reason for each in readings for reason in each.clock_reasons or ())
    return GpuState(
        uuid=gpu.uuid,
        name=gpu.name,
        utilisation_percent=over("utilisation_percent", statistics.fmean),
        sm_clock_mhz=over("sm_clock_mhz", statistics.median),
        memory_clock_mhz=over("memory_clock_mhz", statistics.median),
        temperature_c=over("temperature_c", max),
        power_w=over("power_w", statistics.fmean),
        energy_j=round((last or 0.0) - (first or 0.0), 3) if grew else None,
        throttle_reasons=tuple(reason.description for reason in reasons),
        throttled=any(reason.throttles for reason in reasons),
        notes=tuple(f"{name}: {why}" for name, why in gpu.missing.items() if name in _SHOWN),
    )
