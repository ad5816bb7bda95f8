"""What is sampled: a reading of each GPU and of the host, samples of them, a recording of samples.

Guarantees: plain values, nothing is read here; None is "not told", and the recording says why; the
numbers' names and units are those of ``tfopt.monitor.metrics``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClockReason:
    """Why the clocks are not higher; ``throttles`` where heat, power or hardware is the cause."""

    told: str
    throttles: bool


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU; ``mib`` or ``name`` is None where it is not told.

    In a container the driver may number processes as the host does.
    """

    pid: int
    name: str | None
    mib: float | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at a moment; None where it does not tell. ``GPU_METRICS`` says what each one is.

    Attributes:
        energy_j: Of a counter that began with the driver: only differences mean something.
        clock_reasons: Empty where nothing holds the clocks down.
        processes: Of everybody, the largest holder first.
    """

    device_mib: float | None = None
    total_mib: float | None = None
    process_mib: float | None = None
    utilisation_percent: float | None = None
    memory_utilisation_percent: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    slowdown_temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    pcie_generation: float | None = None
    pcie_max_generation: float | None = None
    pcie_width: float | None = None
    pcie_max_width: float | None = None
    pcie_received_mib_per_s: float | None = None
    pcie_sent_mib_per_s: float | None = None
    nvlinks: float | None = None
    nvlink_received_mib_per_s: float | None = None
    nvlink_sent_mib_per_s: float | None = None
    ecc_corrected: float | None = None
    ecc_uncorrected: float | None = None
    fan_percent: float | None = None
    clock_reasons: tuple[ClockReason, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine and the watched process at a moment; None where it is not told.

    A rate is a mean since the value before, so the first reading has none. ``HOST_METRICS`` says
    what each one is.
    """

    cpu_percent: tuple[float, ...] | None = None
    process_cpu_percent: float | None = None
    rss_mib: float | None = None
    memory_used_mib: float | None = None
    memory_total_mib: float | None = None
    memory_limit_mib: float | None = None
    memory_in_limit_mib: float | None = None
    cpu_limit_cores: float | None = None
    cpu_throttled_s: float | None = None
    disk_read_mib_per_s: float | None = None
    disk_write_mib_per_s: float | None = None
    network_received_mib_per_s: float | None = None
    network_sent_mib_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment of the sampler's clock; ``gpus`` in the order of the recording."""

    at_s: float
    host: HostReading = HostReading()
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True)
class SampledGpu:
    """A GPU, or a part of one (MIG), that was sampled.

    Attributes:
        missing: By metric, why it is None in some samples.
        part_of: The UUID of the GPU that it is a part of. Memory, processes and utilisation are
            then the part's; clocks, power, energy, temperatures, links and errors are the whole
            GPU's, shared with what runs on its other parts.
    """

    uuid: str
    name: str
    missing: Mapping[str, str]
    part_of: str | None = None


@dataclass(frozen=True, slots=True)
class StepMark:
    """Steps of a training that ended at a moment of the sampler's clock; None is not measured.

    Attributes:
        ended_s: When the last of these steps ended.
        steps: How many.
        seconds: What they took together.
        examples: How many were trained on.
        input_wait_s: How long they waited for their batches, together.
    """

    ended_s: float
    steps: int | None = None
    seconds: float | None = None
    examples: int | None = None
    input_wait_s: float | None = None


@dataclass(frozen=True)
class Recording:
    """What was sampled.

    Attributes:
        no_gpu_reason: There where no GPU was sampled.
        steps: What the training did meanwhile, where somebody marked it.
        host_missing: By metric, why it is None in some samples of the host.
    """

    samples: tuple[Sample, ...]
    gpus: tuple[SampledGpu, ...]
    no_gpu_reason: str | None
    steps: tuple[StepMark, ...] = ()
    host_missing: Mapping[str, str] = field(default_factory=dict)


# Keeps samples and marks of a training that may last for weeks, in memory that does not grow.
#
# Guarantees: of the last samples every one is there; where there are many, the older half is
# thinned to every second one, again and again. Of marks two become one, so that their sums stay
# whole. Nothing here waits for a lock: what is kept may be looked at while it grows.

# A sample of one GPU and a few cores is about 2 KiB: some 40 MiB.
MOST = 20_000


class Kept:
    """Samples and marks, in the order of their times."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._samples: list[Sample] = []
        self._steps: list[StepMark] = []

    def add(self, sample: Sample) -> None:
        """Keeps a sample."""
        if len(self._samples) >= self._most:
            old = self._most // 2
            # One assignment: who looks meanwhile sees the list of before or of after.
            self._samples = self._samples[:old:2] + self._samples[old:]
        self._samples.append(sample)

    def mark(self, mark: StepMark) -> None:
        """Keeps a mark."""
        if len(self._steps) >= self._most:
            old = self._most // 2 // 2 * 2
            pairs = zip(self._steps[:old:2], self._steps[1:old:2], strict=True)
            self._steps = [_one(*pair) for pair in pairs] + self._steps[old:]
        self._steps.append(mark)

    def samples(self, begun_s: float, ended_s: float) -> tuple[Sample, ...]:
        """Those between two moments, these included."""
        samples = self._samples
        first = bisect_left(samples, begun_s, key=lambda each: each.at_s)
        return tuple(samples[first : bisect_right(samples, ended_s, key=lambda each: each.at_s)])

    def steps(self, begun_s: float, ended_s: float) -> tuple[StepMark, ...]:
        """Those that ended between two moments, these included."""
        steps = self._steps
        first = bisect_left(steps, begun_s, key=lambda each: each.ended_s)
        return tuple(steps[first : bisect_right(steps, ended_s, key=lambda each: each.ended_s)])

    def newest(self) -> Sample | None:
        """The last sample, if there is one."""
        samples = self._samples
        return samples[-1] if samples else None


def _one(first: StepMark, second: StepMark) -> StepMark:
    """Both as one; what either does not tell, their sum does not."""

    def both(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + b

    def counted(a: int | None, b: int | None) -> int | None:
        return None if a is None or b is None else a + b

    return StepMark(
        second.ended_s,
        steps=counted(first.steps, second.steps),
        seconds=both(first.seconds, second.seconds),
        examples=counted(first.examples, second.examples),
        input_wait_s=both(first.input_wait_s, second.input_wait_s),
    )
