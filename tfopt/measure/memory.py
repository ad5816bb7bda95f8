"""Measure the most memory this process has taken, on the host and on its GPUs.

A peak that is not known is None, and ``unavailable`` then holds the reason under its key.
"""

from __future__ import annotations

from pathlib import Path

from tfopt.files import text_of
from tfopt.monitor.nvml import why_no_gpu

_MIB = 1024**2


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
            return round(sum(int(info(gpu.name)["peak"]) for gpu in gpus) / _MIB, 1)
        hidden = len(tf.config.list_physical_devices("GPU"))
        reason = f"no GPU in use: {hidden} hidden from TensorFlow" if hidden else why_no_gpu()
    except ValueError as error:
        reason = f"TensorFlow's allocator does not tell: {error}"
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
