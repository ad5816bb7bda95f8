"""The samples that rules look at: of one GPU, or of the host, while the training ran.

Guarantees: samples in which a metric is None are left out and counted; where a training marked its
steps, only what was sampled between its first mark and its last counts, since before it is built
and compiled. A stretch that is too short to judge is never judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tfopt.monitor.findings.finding import Evidence, Finding, not_judged
from tfopt.monitor.readings import GpuReading, HostReading, Recording, Sample, StepMark

# NVML's utilisation is itself a mean over up to a second ("between 1 second and 1/6 second
# depending on the product", nvmlUtilization_t): shorter stretches hold few different values.
LEAST_SECONDS = 5.0
LEAST_SAMPLES = 8
# A metric that was told in fewer of the samples may have been told in special ones only.
LEAST_TOLD = 0.5


@dataclass(frozen=True)
class Series:
    """A metric's known values, in order; ``asked`` counts the samples it was asked in."""

    times: tuple[float, ...]
    values: tuple[float, ...]
    asked: int

    @property
    def long_enough(self) -> bool:
        """Whether there are values enough of it, if perhaps in few of the samples."""
        return len(self.values) >= LEAST_SAMPLES and self.times[-1] - self.times[0] >= LEAST_SECONDS

    @property
    def enough(self) -> bool:
        """Whether it can be judged."""
        return self.long_enough and len(self.values) >= LEAST_TOLD * self.asked

    @cached_property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @cached_property
    def median(self) -> float:
        return statistics.median(self.values)

    def evidence(self, name: str, value: float, unit: str) -> Evidence:
        """A number of this whole series."""
        return Evidence(name, value, unit, self.times[0], self.times[-1])

    @property
    def told(self) -> str:
        """How much there is of it, for a finding that could not judge."""
        if not self.values:
            return f"told in none of {self.asked} samples"
        seconds = self.times[-1] - self.times[0]
        return f"told in {len(self.values)} of {self.asked} samples over {seconds:.0f} s"


def series_of(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> Series:
    """What ``value`` knows of each sample."""
    known = [(each.at_s, got) for each in samples if (got := value(each)) is not None]
    return Series(tuple(t for t, _ in known), tuple(v for _, v in known), len(samples))


def while_training(recording: Recording) -> tuple[Sample, ...]:
    """The samples that count; all of them where no steps were marked."""
    if len(recording.steps) < 2:
        return recording.samples
    begun, ended = recording.steps[0].ended_s, recording.steps[-1].ended_s
    return tuple(each for each in recording.samples if begun <= each.at_s <= ended)


def marks_after_first(recording: Recording) -> tuple[StepMark, ...]:
    """Without the first mark, in which the step is compiled and the pipeline filled."""
    return recording.steps[1:]


class GpuTrace:
    """One GPU of a recording, while the training ran."""

    def __init__(self, recording: Recording, place: int) -> None:
        self.recording = recording
        self.place = place
        self.samples = while_training(recording)
        self.label = f"GPU {place} ({recording.gpus[place].name})"

    def readings(self) -> Iterator[tuple[float, GpuReading]]:
        """Each moment with this GPU's reading."""
        return ((each.at_s, each.gpus[self.place]) for each in self.samples)

    def series(self, metric: str, where: Callable[[GpuReading], bool] | None = None) -> Series:
        """A metric, in the samples in which ``where`` is true of this GPU."""
        samples = [s for s in self.samples if where is None or where(s.gpus[self.place])]
        return series_of(samples, lambda each: getattr(each.gpus[self.place], metric))

    def lacks(self, rule: str, metric: str) -> Finding:
        """That the rule could not judge for want of this metric."""
        reason = self.recording.gpus[self.place].missing.get(metric)
        told = self.series(metric).told + (f" ({reason})" if reason else "")
        return not_judged(rule, f"{self.label}: {metric} was {told}", self.place)


class HostTrace:
    """The host of a recording, while the training ran."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.samples = while_training(recording)

    def series(self, metric: str) -> Series:
        """A metric that is one number."""
        return self.of(lambda host: getattr(host, metric))

    def of(self, value: Callable[[HostReading], float | None]) -> Series:
        """What is worked out of each reading."""
        return series_of(self.samples, lambda each: value(each.host))

    def lacks(self, rule: str, metric: str, told: str) -> Finding:
        """That the rule could not judge for want of this metric."""
        reason = self.recording.host_missing.get(metric)
        return not_judged(rule, f"host: {metric} was {told}" + (f" ({reason})" if reason else ""))


def gpu_traces(recording: Recording) -> tuple[GpuTrace, ...]:
    """All GPUs."""
    return tuple(GpuTrace(recording, place) for place in range(len(recording.gpus)))


def boards(recording: Recording) -> tuple[GpuTrace, ...]:
    """One for each board, for what all its parts (MIG) share: the whole GPU, or else one part."""
    whole = {gpu.uuid for gpu in recording.gpus}
    seen: dict[str, GpuTrace] = {}
    for gpu in gpu_traces(recording):
        told = recording.gpus[gpu.place]
        if told.part_of not in whole:
            seen.setdefault(told.part_of or told.uuid, gpu)
    return tuple(seen.values())


def mean_of_cores(host: HostReading) -> float | None:
    """How busy the cores were, all together."""
    return statistics.fmean(host.cpu_percent) if host.cpu_percent else None


def is_busy(reading: GpuReading, percent: float = 80.0) -> bool:
    """Whether a GPU computed most of that moment."""
    return (reading.utilisation_percent or 0.0) >= percent
