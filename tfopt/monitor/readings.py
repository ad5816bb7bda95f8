"""Define what is sampled: readings of the host and of each GPU, samples, and a recording of them.

None means that a value is not known; the recording says why. Names and units of the numbers are
those of ``tfopt.monitor.metrics``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClockReason:
    """Why the clocks are not higher; ``throttles`` where heat, power or hardware is the cause."""

    description: str
    throttles: bool


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU; in a container ``pid`` may be the host's number."""

    pid: int
    name: str | None
    mib: float | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment.

    Attributes:
        clock_reasons: Empty where nothing holds the clocks down.
        processes: Those of all users, the largest first.
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
    fan_percent: float | None = None
    clock_reasons: tuple[ClockReason, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine and the watched process at one moment; a first reading has no rates."""

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
    """One moment of the sampler's clock; ``gpus`` has the order of the recording."""

    at_s: float
    host: HostReading = HostReading()
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True)
class SampledGpu:
    """A GPU, or a part of one (MIG), that was sampled.

    Attributes:
        missing: By metric, why it is None in some samples.
        part_of: The UUID of the GPU that it is a part of. Memory, processes and utilisation are
            then the part's; all else is the whole GPU's, shared with its other parts.
    """

    uuid: str
    name: str
    missing: Mapping[str, str]
    part_of: str | None = None


def board_places(gpus: Sequence[SampledGpu]) -> list[int]:
    """Return one place for each board: the whole GPU's, or else that of the first of its parts."""
    whole = {gpu.uuid for gpu in gpus}
    places: dict[str, int] = {}
    for place, gpu in enumerate(gpus):
        if gpu.part_of not in whole:
            places.setdefault(gpu.part_of or gpu.uuid, place)
    return list(places.values())


@dataclass(frozen=True, slots=True)
class StepMark:
    """Some steps of a training; None where a figure was not measured.

    Attributes:
        ended_s: When the last of these steps ended, on the sampler's clock.
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
    """All samples of a run.

    Attributes:
        no_gpu_reason: Why no GPU was sampled; None where one was.
        steps: The marks of the training that ran meanwhile, if any.
        host_missing: By metric, why it is None in some samples of the host.
    """

    samples: tuple[Sample, ...]
    gpus: tuple[SampledGpu, ...]
    no_gpu_reason: str | None
    steps: tuple[StepMark, ...] = ()
    host_missing: Mapping[str, str] = field(default_factory=dict)
