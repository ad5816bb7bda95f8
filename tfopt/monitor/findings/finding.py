"""Define findings with their evidence, and the series of a recording that rules judge."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Literal

from tfopt.monitor.readings import GpuReading, HostReading, Recording, Sample, board_places

Severity = Literal["serious", "warning", "hint", "not judged"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "hint", "not judged")
"""The most serious first. A hint may be as it was meant, such as a limit that somebody set."""

# NVML's utilisation is itself a mean over up to a second ("between 1 second and 1/6 second
# depending on the product", nvmlUtilization_t): shorter stretches hold few different values.
LEAST_SECONDS = 5.0
LEAST_SAMPLES = 8
# A metric that is known in fewer of the samples may be known in special ones only.
LEAST_KNOWN = 0.5
BUSY_PERCENT = 80.0
# Fewer steps are no steady state.
LEAST_STEPS = 10


@dataclass(frozen=True)
class Evidence:
    """One number that a finding stands on."""

    name: str
    value: float
    unit: str

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
    def enough(self) -> bool:
        """Return whether the metric can be judged."""
        return (
            len(self.values) >= max(LEAST_SAMPLES, LEAST_KNOWN * self.asked)
            and self.seconds >= LEAST_SECONDS
        )

    @property
    def seconds(self) -> float:
        return self.times[-1] - self.times[0] if self.times else 0.0

    @cached_property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @cached_property
    def median(self) -> float:
        return statistics.median(self.values)

    def lacks(self, metric: str, reason: str | None) -> str:
        """Return how little is known of the metric, for a finding that could not judge."""
        known = f"{len(self.values)} of {self.asked} samples over {self.seconds:.0f} s"
        if not self.values:
            known = f"none of {self.asked} samples"
        return f"{metric} was known in {known}" + (f" ({reason})" if reason else "")


def _while_training(recording: Recording) -> tuple[Sample, ...]:
    """Return the samples since the first mark: before it, the model is built and compiled."""
    if len(recording.steps) < 2:
        return recording.samples
    begun, ended = recording.steps[0].ended_s, recording.steps[-1].ended_s
    return tuple(each for each in recording.samples if begun <= each.at_s <= ended)


class Trace:
    """One GPU of a recording, or its host, while the training ran."""

    def __init__(self, recording: Recording, place: int | None = None) -> None:
        """Take the samples of the GPU at ``place``, or the host's where that is None."""
        self.recording = recording
        self.samples = _while_training(recording)
        self._place = place
        self.label, self._missing = "host", recording.host_missing
        if place is not None:
            gpu = recording.gpus[place]
            self.label, self._missing = f"GPU {place} ({gpu.name})", gpu.missing

    @property
    def place(self) -> int:
        """Return the place of the GPU that this is."""
        assert self._place is not None
        return self._place

    def readings(self) -> list[tuple[float, Any]]:
        """Return each moment with its reading."""
        place = self._place
        return [(s.at_s, s.host if place is None else s.gpus[place]) for s in self.samples]

    def series(self, metric: str, where: Callable[[Any], bool] = lambda reading: True) -> Series:
        """Return a metric by its name, from the readings of which ``where`` is true."""
        asked = [(at, getattr(each, metric)) for at, each in self.readings() if where(each)]
        known = [(at, got) for at, got in asked if got is not None]
        return Series(tuple(at for at, _ in known), tuple(got for _, got in known), len(asked))

    def lacks(self, rule: str, metric: str) -> Finding:
        """Return that the rule could not judge for want of this metric."""
        why = self.series(metric).lacks(metric, self._missing.get(metric))
        return not_judged(rule, f"{self.label}: {why}", self._place)


def gpu_traces(recording: Recording) -> tuple[Trace, ...]:
    """Return the traces of all GPUs."""
    return tuple(Trace(recording, place) for place in range(len(recording.gpus)))


def boards(recording: Recording) -> tuple[Trace, ...]:
    """Return one trace for each board, whose parts (MIG) share it: the whole GPU, or one part."""
    return tuple(Trace(recording, place) for place in board_places(recording.gpus))


Rule = Callable[[Recording], list[Finding]]
GpuRule = Callable[[Trace], Iterable[Finding]]


def for_each_board(*metrics: str) -> Callable[[GpuRule], Rule]:
    """Turn a rule about one board, which has to have these metrics, into one about a recording."""

    def decorate(rule: GpuRule) -> Rule:
        def of_one(gpu: Trace) -> Iterable[Finding]:
            lacking = [metric for metric in metrics if not gpu.series(metric).enough]
            return [gpu.lacks(rule.__name__, lacking[0])] if lacking else rule(gpu)

        @wraps(rule)
        def of_all(recording: Recording) -> list[Finding]:
            return [found for gpu in boards(recording) for found in of_one(gpu)]

        return of_all

    return decorate


def mean_of_cores(host: HostReading) -> float | None:
    """Return how busy the cores were, all together."""
    return statistics.fmean(host.cpu_percent) if host.cpu_percent else None


def is_busy(reading: GpuReading) -> bool:
    """Return whether a GPU computed most of that moment."""
    return (reading.utilisation_percent or 0.0) >= BUSY_PERCENT


def is_throttled(reading: GpuReading) -> bool:
    """Return whether heat, power or hardware holds the clocks down."""
    return any(reason.throttles for reason in reading.clock_reasons or ())


@dataclass(frozen=True)
class Steps:
    """How long the steps took after the first mark, and the share that they waited for input."""

    step_ms: float
    wait_share: float | None
    count: int


def steps_of(recording: Recording) -> Steps | None:
    """Return the steps; None where too few were marked to judge by.

    In the first mark the step is compiled and the pipeline filled.
    """
    timed = [m for m in recording.steps[1:] if m.steps and m.seconds]
    count = sum(m.steps or 0 for m in timed)
    seconds = sum(m.seconds or 0.0 for m in timed)
    if count < LEAST_STEPS or seconds < LEAST_SECONDS:
        return None
    waited = [m for m in timed if m.input_wait_s is not None]
    of = sum(m.seconds or 0.0 for m in waited)
    share = sum(m.input_wait_s or 0.0 for m in waited) / of if of >= seconds / 2 else None
    return Steps(1000 * seconds / count, share, count)
