"""What a rule has found in a recording: said in a sentence, with its numbers and what to try.

Guarantees: every number has its unit and the stretch of the recording that it is of; a rule that
lacked what it needs says so in a finding of its own, "not judged", and never guesses.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tfopt.monitor.readings import GpuReading, HostReading, Recording, Sample, StepMark

Severity = Literal["serious", "warning", "hint", "not judged"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "hint", "not judged")
"""The most serious first. A hint is no trouble: it says what the time goes into."""


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
    """What was found.

    Attributes:
        rule: Its name, which stays the same from release to release.
        told: One sentence.
        sure: How sure that is, and why.
        action: What to do.
        transform: What of tfopt to try, as it stands in a script; None where nothing helps.
        gpu: Its place in the recording, or the first's of several; None where it is about the host,
            or all GPUs.
    """

    rule: str
    severity: Severity
    told: str
    evidence: tuple[Evidence, ...] = ()
    sure: str = ""
    action: str = ""
    transform: str | None = None
    gpu: int | None = None

    def __str__(self) -> str:
        return f"{self.severity}: {self.told}"


def not_judged(rule: str, why: str, gpu: int | None = None) -> Finding:
    """That a rule lacked what it needs."""
    return Finding(rule, "not judged", why, gpu=gpu)


def number(value: float) -> str:
    """As people write it: 0.42, 9.7, 83, 12345."""
    return (
        f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}"
    )


# The samples that rules look at: of one GPU, or of the host, while the training ran.
#
# Guarantees: samples in which a metric is None are left out and counted; where a training marked
# its steps, only what was sampled between its first mark and its last counts, since before it is
# built and compiled. A stretch that is too short to judge is never judged.

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


# Whether a series grows steadily, and when it would be at a limit.
#
# By Theil and Sen's slope with its interval (scipy), which a few outliers do not bend.
# Guarantees: what grew at the start and has stopped, or grew in one jump, is no trend; nothing is
# told further ahead than the recording can bear.

# Slopes between all pairs are looked at.
_MOST_POINTS = 200
# A warm-up that ends within the first half is not looked at, one that goes on is.
_LOOKED_AT = 0.5
_PARTS = 3
LEAST_POINTS = 20
LEAST_TREND_SECONDS = 30.0
# A straight line that was watched for a minute says little about the hour after.
FURTHEST_AHEAD = 20.0


@dataclass(frozen=True)
class Ahead:
    """When a limit would be reached if it goes on like this, in seconds from the last sample."""

    a_second: float
    soonest_s: float
    latest_s: float
    begun_s: float
    ended_s: float


def long_enough(series: Series) -> bool:
    """Whether a trend can be judged at all."""
    later = _later(series)
    return len(later.values) >= LEAST_POINTS and series.times[-1] - series.times[0] >= (
        LEAST_TREND_SECONDS
    )


def reaches(series: Series, limit: float, least_growth: float) -> Ahead | None:
    """None where it does not grow by ``least_growth`` in every part of its second half together."""
    from scipy.stats import theilslopes

    later = _later(series)
    thirds = [_part(later, n) for n in range(_PARTS)]
    if any(last - first <= 0 for first, last in thirds):
        return None
    if later.values[-1] - later.values[0] < least_growth:
        return None
    step = max(1, len(later.values) // _MOST_POINTS)
    values, times = later.values[::step], later.times[::step]
    slope, _, low, high = theilslopes(values, times)
    if low <= 0:
        return None
    room = max(0.0, limit - later.values[-1])
    watched = series.times[-1] - series.times[0]
    if room / slope > FURTHEST_AHEAD * watched:
        return None
    return Ahead(
        float(slope), room / float(high), room / float(low), later.times[0], later.times[-1]
    )


def _later(series: Series) -> Series:
    if not series.times:
        return series
    begin = series.times[-1] - _LOOKED_AT * (series.times[-1] - series.times[0])
    first = next(n for n, at in enumerate(series.times) if at >= begin)
    return Series(series.times[first:], series.values[first:], series.asked)


def _part(series: Series, number: int) -> tuple[float, float]:
    """The first and the last value of one of the parts."""
    last = len(series.values) - 1
    return series.values[last * number // _PARTS], series.values[last * (number + 1) // _PARTS]


def when(ahead: Ahead) -> str:
    """As people say it."""
    soonest, latest = _time(ahead.soonest_s), _time(ahead.latest_s)
    return f"in about {soonest}" if soonest == latest else f"in {soonest} to {latest}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# What a training's own marks say: how long its steps took, and how long they waited for input.

# Fewer steps are no steady state.
LEAST_STEPS = 10


@dataclass(frozen=True)
class Steps:
    """Of all marks after the first; ``wait_share`` is None where the wait was not measured."""

    step_ms: float
    wait_share: float | None
    count: int
    begun_s: float
    ended_s: float

    def evidence(self, name: str, value: float, unit: str) -> Evidence:
        return Evidence(name, value, unit, self.begun_s, self.ended_s)


def steps_of(recording: Recording) -> Steps | None:
    """None where too few steps were marked to judge by."""
    timed = [m for m in marks_after_first(recording) if m.steps and m.seconds]
    count = sum(m.steps or 0 for m in timed)
    seconds = sum(m.seconds or 0.0 for m in timed)
    if count < LEAST_STEPS or seconds < LEAST_SECONDS:
        return None
    waited = [m for m in timed if m.input_wait_s is not None]
    of = sum(m.seconds or 0.0 for m in waited)
    share = sum(m.input_wait_s or 0.0 for m in waited) / of if of >= seconds / 2 else None
    return Steps(
        1000 * seconds / count,
        share,
        count,
        timed[0].ended_s - (timed[0].seconds or 0.0),
        timed[-1].ended_s,
    )
