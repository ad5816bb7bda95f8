"""Hold one block: what one fresh process measured of one variant."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tfopt.report.strict import AboveZero, Count, FromZero, ReportError, require_reasons


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

    host_peak_mib: FromZero | None
    gpu_allocator_peak_mib: FromZero | None
    gpu_steady_peak_mib: FromZero | None
    nvml_process_peak_mib: FromZero | None
    nvml_device_peak_mib: FromZero | None
    unavailable: Mapping[str, str]

    MAY_BE_NONE: ClassVar[tuple[str, ...]] = (
        "host_peak_mib",
        "gpu_allocator_peak_mib",
        "gpu_steady_peak_mib",
        "nvml_process_peak_mib",
        "nvml_device_peak_mib",
    )

    def __post_init__(self) -> None:
        require_reasons(self, self.MAY_BE_NONE, self.unavailable)


@dataclass(frozen=True)
class GpuState:
    """One GPU during the steady state of a block; None where the driver does not say.

    Attributes:
        utilisation_percent: The mean; so is ``power_w``.
        sm_clock_mhz: The median; so is ``memory_clock_mhz``.
        temperature_c: The highest.
        energy_j: Over the whole steady state.
        throttle_reasons: Why the driver held the clocks down, in words; idleness and a limit that
            somebody set on purpose are listed, and do not make a block invalid by themselves.
        throttled: Whether one of the reasons is heat, power or hardware.
        notes: What the driver did not say, with its words, and where ``energy_j`` is power
            integrated over the samples instead of a counter's.
    """

    uuid: str
    name: str
    utilisation_percent: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_c: float | None
    power_w: float | None
    energy_j: float | None
    throttle_reasons: tuple[str, ...]
    throttled: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """Phases in seconds, steady state in windows; times of windows are the mean over their steps.

    Attributes:
        start_s: Until Python, the job's modules and TensorFlow are loaded.
        build_s: Data, model and ``compile()``.
        first_step_s: The first execution, which traces and compiles.
        windows_ms: Mean step time of each window of the steady state, in order.
        steps: How many steps each window has.
        between_epochs_ms: What passed between the last step of an epoch and the next epoch.
        batch_size: Examples in a full batch, over all replicas; None where that is not known.
        examples_per_step: On average over an epoch, whose last batch may hold fewer; None with
            ``batch_size``.
        gpus: The state of each GPU in use; empty where there is none.
        unavailable: Why ``batch_size`` is None.
        data: Name and note of the data, as the job gives them, and how much of what shape.
        invalid: Why this block must not be counted; None where it may.
        round: Counted from 0; the blocks of one round were measured near each other, and where
            there are several of one variant in it, the last was tried because of those before.
    """

    start_s: FromZero
    build_s: FromZero
    first_step_s: FromZero
    warm_up_s: FromZero
    windows_ms: tuple[AboveZero, ...]
    steps: tuple[Count, ...]
    between_epochs_ms: tuple[FromZero, ...]
    batch_size: Count | None
    examples_per_step: AboveZero | None
    replicas: Count
    memory: BlockMemory
    gpus: tuple[GpuState, ...]
    unavailable: Mapping[str, str]
    data: str
    invalid: str | None
    round: int

    MAY_BE_NONE: ClassVar[tuple[str, ...]] = ("batch_size",)

    def __post_init__(self) -> None:
        if not self.windows_ms:
            raise ReportError("windows_ms", expected="at least one window", received="none")
        if len(self.steps) != len(self.windows_ms):
            expected = f"{len(self.windows_ms)} counts, one a window"
            raise ReportError("steps", expected=expected, received=f"{len(self.steps)}")
        require_reasons(self, self.MAY_BE_NONE, self.unavailable)

    @property
    def step_ms(self) -> float:
        """Return the median window: what the machine's other users do hardly moves it."""
        return statistics.median(self.windows_ms)

    @property
    def per_example_ms(self) -> tuple[float, ...]:
        """Return the windows by example, by which batches of any size can be compared."""
        return tuple(window / (self.examples_per_step or 1) for window in self.windows_ms)

    @property
    def mean_ms(self) -> float:
        """Return all time over all steps, in which a rare long wait shows."""
        return 1000 * self._lasted_s / sum(self.steps)

    @property
    def energy_per_example_j(self) -> float | None:
        """Return the energy of all GPUs at their mean power; None where one does not say it."""
        energies = [gpu.energy_j for gpu in self.gpus if gpu.energy_j is not None]
        if len(energies) != len(self.gpus) or not energies or self.examples_per_step is None:
            return None
        return sum(energies) / self._lasted_s * self.step_ms / 1000 / self.examples_per_step

    @property
    def _lasted_s(self) -> float:
        """Return how long all windows took together."""
        windows = zip(self.windows_ms, self.steps, strict=True)
        return sum(window * steps for window, steps in windows) / 1000
