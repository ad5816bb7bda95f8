"""Memory of one block: each peak under the name of what it is a peak of.

Guarantees: every figure that is None has its reason, and no other figure has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tfopt.report.reasons import require_reasons
from tfopt.report.strict import require_number


@dataclass(frozen=True)
class BlockMemory:
    """Peaks of one process, in MiB.

    Attributes:
        host_peak_mib: Resident memory of the process, from its start.
        gpu_allocator_peak_mib: What TensorFlow's allocator had handed out at most, over all GPUs,
            from the start: building, tracing, compiling and autotuning included.
        gpu_steady_peak_mib: The same after the peak was reset at the end of the warm-up.
        nvml_process_peak_mib: What the driver says this process held, sampled while measuring:
            the allocator's whole reservation, with CUDA's own.
        nvml_device_peak_mib: What the driver says everybody held on these GPUs.
    """

    host_peak_mib: float | None
    gpu_allocator_peak_mib: float | None
    gpu_steady_peak_mib: float | None
    nvml_process_peak_mib: float | None
    nvml_device_peak_mib: float | None
    unavailable: Mapping[str, str]

    MAY_BE_NONE: ClassVar[tuple[str, ...]] = (
        "host_peak_mib",
        "gpu_allocator_peak_mib",
        "gpu_steady_peak_mib",
        "nvml_process_peak_mib",
        "nvml_device_peak_mib",
    )

    def __post_init__(self) -> None:
        for name in self.MAY_BE_NONE:
            if getattr(self, name) is not None:
                require_number(name, getattr(self, name), least=0)
        require_reasons(self, self.MAY_BE_NONE, self.unavailable)
