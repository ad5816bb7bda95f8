"""Measure the most memory this process has taken, on the host and on its GPUs.

A peak that is not known is None, and ``unavailable`` then holds the reason.
"""

from __future__ import annotations

from pathlib import Path

from tfopt.monitor.nvml import why_no_gpu
from tfopt.monitor.readings import Recording
from tfopt.report.block import BlockMemory

_MIB = 1024**2


def peak_host_mib(unavailable: dict[str, str], key: str = "peak_host_mib") -> float | None:
    """Return the peak of resident memory; ``ru_maxrss`` is inherited from the parent process."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError as error:
        unavailable[key] = f"this system does not tell: {error.strerror or error}"
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    unavailable[key] = "this kernel keeps no peak"
    return None


def peak_gpu_mib(unavailable: dict[str, str]) -> float | None:
    """Return what TensorFlow's allocator had handed out at most, over all its GPUs."""
    return _mib(AllocatorPeaks().peaks(), "peak_gpu_mib", unavailable)


def peak_of_one_gpu_mib(unavailable: dict[str, str]) -> float | None:
    """Return what TensorFlow's allocator had handed out at most of the fullest GPU."""
    peaks = AllocatorPeaks().peaks()
    if isinstance(peaks, str):
        unavailable["peak_of_one_gpu_mib"] = peaks
        return None
    return round(max(peaks.values()) / _MIB, 1)


class AllocatorPeaks:
    """The peaks of TensorFlow's allocators, before and after one moment.

    Attributes:
        before: By device, up to the moment; so ``after`` since then. A text is the reason why
            there is none.
    """

    def __init__(self) -> None:
        self.before: dict[str, int] | str = "the warm-up did not end"
        self._kept: str | None = "the warm-up did not end"

    def reset(self) -> None:
        """Mark the moment: what follows has peaks of its own."""
        import tensorflow as tf

        self.before = self.peaks()
        self._kept = None
        try:
            for name in self.before if isinstance(self.before, dict) else ():
                tf.config.experimental.reset_memory_stats(name)
        except ValueError as error:
            self._kept = f"TensorFlow's allocator keeps its peak: {error}"

    @property
    def after(self) -> dict[str, int] | str:
        """Return the peaks since the reset."""
        return self._kept or self.peaks()

    def overall(self) -> dict[str, int] | str:
        """Return the peaks since the start of the process."""
        now = self.peaks()
        if isinstance(now, str) or isinstance(self.before, str):
            return now
        return {name: max(peak, self.before.get(name, 0)) for name, peak in now.items()}

    def peaks(self) -> dict[str, int] | str:
        """Return bytes by device, as TensorFlow reports them now; or why it does not."""
        import tensorflow as tf

        gpus = tf.config.list_logical_devices("GPU")
        if not gpus:
            return why_no_gpu_here()
        try:
            info = tf.config.experimental.get_memory_info
            return {gpu.name: int(info(gpu.name)["peak"]) for gpu in gpus}
        except ValueError as error:
            return f"TensorFlow's allocator does not tell: {error}"


def why_no_gpu_here() -> str:
    """Return why this process uses no GPU: the machine's reason, or that they are hidden."""
    import tensorflow as tf

    hidden = len(tf.config.list_physical_devices("GPU"))
    return f"no GPU in use: {hidden} hidden from TensorFlow" if hidden else why_no_gpu()


def gpus_in_use() -> dict[int, str]:
    """Return the GPUs that TensorFlow uses: their place in CUDA's order, and CUDA's names."""
    import tensorflow as tf

    physical = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details
    return {
        physical.index(gpu): str(details(gpu).get("device_name", ""))
        for gpu in tf.config.get_visible_devices("GPU")
    }


def block_memory(allocators: AllocatorPeaks, recording: Recording) -> BlockMemory:
    """Return the peaks of this process; ``recording`` is of the whole block."""
    reasons: dict[str, str] = {}
    return BlockMemory(
        host_peak_mib=peak_host_mib(reasons, "host_peak_mib"),
        gpu_allocator_peak_mib=_mib(allocators.overall(), "gpu_allocator_peak_mib", reasons),
        gpu_steady_peak_mib=_mib(allocators.after, "gpu_steady_peak_mib", reasons),
        nvml_process_peak_mib=_sampled_peak(recording, "process_mib", reasons),
        nvml_device_peak_mib=_sampled_peak(recording, "device_mib", reasons),
        unavailable=reasons,
    )


def _mib(peaks: dict[str, int] | str, key: str, reasons: dict[str, str]) -> float | None:
    if isinstance(peaks, str):
        reasons[key] = peaks
        return None
    return round(sum(peaks.values()) / _MIB, 1)


def _sampled_peak(recording: Recording, metric: str, reasons: dict[str, str]) -> float | None:
    """Return the largest sum over the GPUs; None where a GPU is missing from every sample."""
    key = f"nvml_{metric.removesuffix('_mib')}_peak_mib"
    samples = [[getattr(gpu, metric) for gpu in sample.gpus] for sample in recording.samples]
    known: list[float] = [sum(held) for held in samples if held and None not in held]
    # No process on a GPU holds nothing: its context alone takes hundreds of MiB.
    if known and max(known) > 0:
        return round(max(known), 1)
    if known:
        reasons[key] = "NVML lists this process on no GPU: a container counts processes anew"
    elif recording.gpus:
        missing = [gpu.missing[metric] for gpu in recording.gpus if metric in gpu.missing]
        reasons[key] = missing[0] if missing else "no sample was taken"
    else:
        reasons[key] = recording.no_gpu_reason or "no GPU was sampled"
    return None
