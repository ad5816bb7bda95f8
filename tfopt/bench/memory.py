"""The most memory this process has taken, on the host and on its GPUs.

Guarantees: what cannot be told is None, and ``unavailable`` then holds the reason.
"""

from __future__ import annotations

from pathlib import Path

from tfopt.monitor.nvml import why_no_gpu


def peak_host_mib(unavailable: dict[str, str]) -> float | None:
    """Resident memory; ``ru_maxrss`` would not do, which is inherited from the parent process."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError as error:
        unavailable["peak_host_mib"] = f"this system does not tell: {error.strerror or error}"
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    unavailable["peak_host_mib"] = "this kernel keeps no peak"
    return None


def peak_gpu_mib(unavailable: dict[str, str]) -> float | None:
    """What TensorFlow's allocator had handed out at most, over all its GPUs."""
    import tensorflow as tf

    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        unavailable["peak_gpu_mib"] = why_no_gpu()
        return None
    peaks = [tf.config.experimental.get_memory_info(gpu.name)["peak"] for gpu in gpus]
    return round(float(sum(peaks)) / 1024**2, 1)
