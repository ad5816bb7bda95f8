"""Define findings with their evidence, and the series of a recording that rules judge."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Literal

from tfopt.monitor.readings import GpuReading, HostReading, Recording, Sample, StepMark

Severity = Literal["serious", "warning", "hint", "not judged"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "hint", "not judged")
"""The most serious first. A hint is no trouble: it says what the time goes into."""

# NVML's utilisation is itself a mean over up to a second ("between 1 second and 1/6 second
# depending on the product", nvmlUtilization_t): shorter stretches hold few different values.
LEAST_SECONDS = 5.0
LEAST_SAMPLES = 8
# A metric that is known in fewer of the samples may be known in special ones only.
LEAST_KNOWN = 0.5
# Fewer steps are no steady state.
LEAST_STEPS = 10


@dataclass(frozen=True)
class Evidence:
    """One number, of the stretch from ``begun_s`` to ``ended_s`` of the recording's clock."""

    name: str
    value: float
    unit: str
    begun_s: float
    ended_s: float

    def __str__(self) -> str:
        return f"{self.name} {number(self.value)}{' ' * bool(self.unit)}{self.unit}"


@dataclass(frozen=True)
class Finding:
    """What a rule found in a recording.

    Attributes:
        rule: Its name, which stays the same from release to release.
        message: One sentence.
        sure: How sure that is, and why.
        action: What to do.
        transform: The transform to try, as it stands in a script; None where none helps.
        gpu: Its place in the recording, or the first one's of several; None for the host, or for
            all GPUs.
    """

    rule: str
    severity: Severity
    message: str
    evidence: tuple[Evidence, ...] = ()
    sure: str = ""
    action: str = ""
    transform: str | None = None
    gpu: int | None = None

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}"


def not_judged(rule: str, why: str, gpu: int | None = None) -> Finding:
    """Return the finding of a rule that lacked what it needs."""
    return Finding(rule, "not judged", why, gpu=gpu)


def number(value: float) -> str:
    """Return a number as people write it: 0.42, 9.7, 83, 12345."""
    return (
        f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}"
    )


@dataclass(frozen=True)
class Series:
    """The known values of a metric, in order; ``asked`` counts the samples they are from."""

    times: tuple[float, ...]
    values: tuple[float, ...]
    asked: int

    @property
    def long_enough(self) -> bool:
        """Return whether there are enough values, if perhaps in few of the samples."""
        return len(self.values) >= LEAST_SAMPLES and self.seconds >= LEAST_SECONDS

    @property
    def enough(self) -> bool:
        """Return whether the metric can be judged."""
        return self.long_enough and len(self.values) >= LEAST_KNOWN * self.asked

    @property
    def seconds(self) -> float:
        return self.times[-1] - self.times[0] if self.times else 0.0

    @cached_property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @cached_property
    def median(self) -> float:
        return statistics.median(self.values)

    def evidence(self, name: str, value: float, unit: str) -> Evidence:
        """Return a number of this whole series as evidence."""
        return Evidence(name, value, unit, self.times[0], self.times[-1])

    def lacks(self, metric: str, reason: str | None) -> str:
        """Return how little is known of the metric, for a finding that could not judge."""
        known = f"{len(self.values)} of {self.asked} samples over {self.seconds:.0f} s"
        if not self.values:
            known = f"none of {self.asked} samples"
        return f"{metric} was known in {known}" + (f" ({reason})" if reason else "")


def series_of(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> Series:
    """Return the series of what ``value`` returns for each sample."""
    known = [(each.at_s, got) for each in samples if (got := value(each)) is not None]
    return Series(tuple(t for t, _ in known), tuple(v for _, v in known), len(samples))


def _while_training(recording: Recording) -> tuple[Sample, ...]:
    """Return the samples since the first mark: before it, the model is built and compiled."""
    if len(recording.steps) < 2:
        return recording.samples
    begun, ended = recording.steps[0].ended_s, recording.steps[-1].ended_s
    return tuple(each for each in recording.samples if begun <= each.at_s <= ended)


class GpuTrace:
    """One GPU of a recording, while the training ran."""

    def __init__(self, recording: Recording, place: int) -> None:
        self.recording = recording
        self.place = place
        self.samples = _while_training(recording)
        self.label = f"GPU {place} ({recording.gpus[place].name})"

    def readings(self) -> Iterator[tuple[float, GpuReading]]:
        """Yield each moment with the reading of this GPU."""
        return ((each.at_s, each.gpus[self.place]) for each in self.samples)

    def series(self, metric: str, where: Callable[[GpuReading], bool] | None = None) -> Series:
        """Return a metric, in the samples in which ``where`` is true of this GPU."""
        samples = [s for s in self.samples if where is None or where(s.gpus[self.place])]
        return series_of(samples, lambda each: getattr(each.gpus[self.place], metric))

    def of(self, value: Callable[[GpuReading], float | None]) -> Series:
        """Return what ``value`` returns for each reading."""
        return series_of(self.samples, lambda each: value(each.gpus[self.place]))

    def lacks(self, rule: str, metric: str) -> Finding:
        """Return that the rule could not judge for want of this metric."""
        reason = self.recording.gpus[self.place].missing.get(metric)
        why = self.series(metric).lacks(metric, reason)
        return not_judged(rule, f"{self.label}: {why}", self.place)


class HostTrace:
    """The host of a recording, while the training ran."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.samples = _while_training(recording)

    def series(self, metric: str) -> Series:
        """Return a metric that is one number."""
        return self.of(lambda host: getattr(host, metric))

    def of(self, value: Callable[[HostReading], float | None]) -> Series:
        """Return what ``value`` returns for each reading."""
        return series_of(self.samples, lambda each: value(each.host))

    def lacks(self, rule: str, metric: str, series: Series) -> Finding:
        """Return that the rule could not judge for want of this metric."""
        reason = self.recording.host_missing.get(metric)
        return not_judged(rule, f"host: {series.lacks(metric, reason)}")


def gpu_traces(recording: Recording) -> tuple[GpuTrace, ...]:
    """Return the traces of all GPUs."""
    return tuple(GpuTrace(recording, place) for place in range(len(recording.gpus)))


def boards(recording: Recording) -> tuple[GpuTrace, ...]:
    """Return one trace for each board, whose parts (MIG) share it: the whole GPU, or one part."""
    whole = {gpu.uuid for gpu in recording.gpus}
    seen: dict[str, GpuTrace] = {}
    for trace in gpu_traces(recording):
        gpu = recording.gpus[trace.place]
        if gpu.part_of not in whole:
            seen.setdefault(gpu.part_of or gpu.uuid, trace)
    return tuple(seen.values())


Rule = Callable[[Recording], list[Finding]]
GpuRule = Callable[[GpuTrace], Finding | None]


def for_each(traces: Callable[[Recording], Sequence[GpuTrace]]) -> Callable[[GpuRule], Rule]:
    """Turn a rule about one GPU into a rule about the GPUs of a recording."""

    def decorate(rule: GpuRule) -> Rule:
        @wraps(rule)
        def of_all(recording: Recording) -> list[Finding]:
            return [found for gpu in traces(recording) if (found := rule(gpu)) is not None]

        return of_all

    return decorate


def mean_of_cores(host: HostReading) -> float | None:
    """Return how busy the cores were, all together."""
    return statistics.fmean(host.cpu_percent) if host.cpu_percent else None


def is_busy(reading: GpuReading, percent: float = 80.0) -> bool:
    """Return whether a GPU computed most of that moment."""
    return (reading.utilisation_percent or 0.0) >= percent


def is_throttled(reading: GpuReading) -> bool:
    """Return whether heat, power or hardware holds the clocks down."""
    return any(reason.throttles for reason in reading.clock_reasons or ())


def marks_after_first(recording: Recording) -> tuple[StepMark, ...]:
    """Return all marks but the first, in which the step is compiled and the pipeline filled."""
    return recording.steps[1:]


@dataclass(frozen=True)
class Steps:
    """How long the steps took after the first mark, and the share that they waited for input."""

    step_ms: float
    wait_share: float | None
    count: int
    begun_s: float
    ended_s: float

    def evidence(self, name: str, value: float, unit: str) -> Evidence:
        """Return a number of all these steps as evidence."""
        return Evidence(name, value, unit, self.begun_s, self.ended_s)


def steps_of(recording: Recording) -> Steps | None:
    """Return the steps; None where too few were marked to judge by."""
    timed = [m for m in marks_after_first(recording) if m.steps and m.seconds]
    count = sum(m.steps or 0 for m in timed)
    seconds = sum(m.seconds or 0.0 for m in timed)
    if count < LEAST_STEPS or seconds < LEAST_SECONDS:
        return None
    waited = [m for m in timed if m.input_wait_s is not None]
    of = sum(m.seconds or 0.0 for m in waited)
    share = sum(m.input_wait_s or 0.0 for m in waited) / of if of >= seconds / 2 else None
    begun_s = timed[0].ended_s - (timed[0].seconds or 0.0)
    return Steps(1000 * seconds / count, share, count, begun_s, timed[-1].ended_s)
