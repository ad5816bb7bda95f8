"""Measure what this process has taken: host and GPU memory, and what its GPUs did meanwhile.

What is not known is None, with its reason in ``unavailable`` or in the notes of a GPU's state.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from tfopt.data.host_memory import MIB
from tfopt.files import text_of
from tfopt.monitor.nvml import why_no_gpu
from tfopt.monitor.readings import GpuReading, Recording, SampledGpu
from tfopt.report.timed_process import GpuState


def peak_host_mib(unavailable: dict[str, str]) -> float | None:
    """Return the peak of resident memory; ``ru_maxrss`` is inherited from the parent process."""
    for line in text_of(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    unavailable["host_peak_mib"] = "this system keeps no peak"
    return None


def peak_gpu_mib(unavailable: dict[str, str]) -> float | None:
    """Return what TensorFlow's allocators had handed out at most, over all GPUs."""
    import tensorflow as tf

    gpus, info = tf.config.list_logical_devices("GPU"), tf.config.experimental.get_memory_info
    try:
        if gpus:
            return round(sum(int(info(gpu.name)["peak"]) for gpu in gpus) / MIB, 1)
        hidden = len(tf.config.list_physical_devices("GPU"))
        reason = f"no GPU in use: {hidden} hidden from TensorFlow" if hidden else why_no_gpu()
    except ValueError as error:
        reason = f"TensorFlow's allocator reports nothing: {error}"
    unavailable["gpu_peak_mib"] = reason
    return None


def gpus_in_use() -> dict[int, str]:
    """Return the GPUs that TensorFlow uses: their place in CUDA's order, and CUDA's names."""
    import tensorflow as tf

    physical = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details
    return {
        physical.index(gpu): str(details(gpu).get("device_name", ""))
        for gpu in tf.config.get_visible_devices("GPU")
    }


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
        known = [v for reading in readings if (v := getattr(reading, metric)) is not None]
        return round(sum_up(known), 1) if known else None

    counted = [reading.energy_j for reading in readings]
    first, last = (counted[0], counted[-1]) if counted else (None, None)
    grew = first is not None and last is not None and last > first
    # Every reason that was seen in any sample, in the order of the first time.
    reasons = dict.fromkeys(
        reason for reading in readings for reason in reading.clock_reasons or ()
    )
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
        throttled=any(reason.cause for reason in reasons),
        notes=tuple(f"{name}: {why}" for name, why in gpu.missing.items() if name in _SHOWN),
    )
