"""Find what slows a training down, by rules for a recording.

Findings depend only on the recording. The thresholds are tfopt's, unless a comment names a source.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from tfopt.monitor.readings import GpuReading, Recording, Sample, StepMark
from tfopt.report.format import quantity

Severity = Literal["serious", "warning", "hint", "not judged"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "hint", "not judged")
"""The most serious first. A hint may be intended, such as a limit that was set."""

# NVML's utilisation is a mean over up to a second ("between 1 second and 1/6 second depending on
# the product", nvmlUtilization_t).
LEAST_SECONDS = 5.0
LEAST_SAMPLES = 8
LEAST_KNOWN = 0.5  # of the samples, for a metric to count as known
LEAST_STEPS = 10  # for a steady state
# Shares of the step spent waiting. TensorFlow's profiler calls 5 % moderately and 20 % highly
# input-bound (op_stats_to_input_pipeline_analysis.cc); XProf makes suggestions from 10 % on
# (input_bound_rule.h).
WARNING_WAIT = 0.10
SERIOUS_WAIT = 0.20
NOT_STARVED_PERCENT = 95.0  # a GPU at this utilisation has queued work, and does not wait
# Of the memory; out-of-memory killers give no warning.
NEARLY_FULL = 0.90
FULL = 0.97
THROTTLED_SHARE = 0.05  # of the samples
# The utilisation of a GPU that is unused, beside one that computes.
IDLE_PERCENT = 5.0
USED_PERCENT = 30.0
SHARED_SHARE = 0.20  # of the samples; nvidia-smi uses a GPU for a moment
LEAST_MIB = 50.0  # of a process that computes; a CUDA context has 100 to 500 MiB


@dataclass(frozen=True)
class Finding:
    """A finding of a rule in a recording.

    Attributes:
        rule: Its name, stable across releases.
        message: One sentence.
        evidence: The figures, with their units.
        action: What to do.
        transform: The transform to try, as code; None if none helps.
        gpu: Its index in the recording; None for the host, or for several GPUs.
    """

    rule: str
    severity: Severity
    message: str
    evidence: tuple[str, ...] = ()
    action: str = ""
    transform: str | None = None
    gpu: int | None = None

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}"


class NotKnownError(Exception):
    """A rule lacks data; the text names it."""


@dataclass(frozen=True)
class Trace:
    """The samples of one GPU of a recording, or of the host if ``place`` is None."""

    recording: Recording
    place: int | None = None

    @property
    def label(self) -> str:
        if self.place is None:
            return "host"
        return f"GPU {self.place} ({self.recording.gpus[self.place].name})"

    @property
    def readings(self) -> list[Any]:
        samples, place = self.recording.samples, self.place
        return [sample.host if place is None else sample.gpus[place] for sample in samples]

    def values(self, metric: str) -> list[Any]:
        """Return the known values of a metric, in order; raise NotKnownError if they are few."""
        readings = self.readings
        values = [v for reading in readings if (v := getattr(reading, metric)) is not None]
        if len(values) >= max(LEAST_SAMPLES, LEAST_KNOWN * len(readings)):
            return values
        recording, place = self.recording, self.place
        missing = recording.host_missing if place is None else recording.gpus[place].missing
        why = f" ({missing[metric]})" if metric in missing else ""
        known = f"{len(values) or 'none'} of {len(readings)} samples"
        raise NotKnownError(f"{self.label}: {metric} was known in {known}{why}")


def findings(recording: Recording) -> list[Finding]:
    """Return the findings of all rules, the most serious first; the last names rules not judged.

    Samples before the first mark, while the model is built and compiled, do not count. An empty
    list means that all rules were judged and found nothing.

    Example:
        >>> for finding in findings(monitor.recording):
        ...     print(finding, finding.action)
    """
    recording = replace(recording, samples=_while_training(recording))
    samples = recording.samples
    seconds = samples[-1].at_s - samples[0].at_s if samples else 0.0
    if len(samples) < LEAST_SAMPLES or seconds < LEAST_SECONDS:
        why = (
            f"{len(samples)} samples over {seconds:.1f} s are too few to judge: "
            f"{LEAST_SAMPLES} over {LEAST_SECONDS:.0f} s are needed."
        )
        return [Finding("too_few_samples", "not judged", why)]
    results: list[Finding] = []
    lacking = []
    gpus = [Trace(recording, place) for place in range(len(recording.gpus))]
    rules = [partial(rule, recording) for rule in (starved_by_input, host_memory, gpu_unused)]
    rules += [partial(rule, gpu) for rule in (throttled, another_process) for gpu in gpus]
    for rule in rules:
        try:
            results += rule()
        except NotKnownError as error:
            lacking.append(f"{rule.func.__name__}: {error}")
    results.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    if not gpus:
        lacking.append(f"the rules about GPUs: {recording.no_gpu_reason}")
    if lacking:
        results.append(Finding("not_judged", "not judged", f"{'; '.join(lacking)}."))
    return results


def _while_training(recording: Recording) -> tuple[Sample, ...]:
    samples, marks = recording.samples, recording.steps
    if len(marks) < 2:
        return samples
    begin_s, end_s = marks[0].ended_s, marks[-1].ended_s
    return tuple(sample for sample in samples if begin_s <= sample.at_s <= end_s)


def _figure(name: str, value: float, unit: str) -> str:
    return f"{name} {quantity(value, 2)} {unit}"


def starved_by_input(recording: Recording) -> Iterator[Finding]:
    """Find steps that wait for their batches while no GPU has work queued."""
    # Without the first mark, which includes compiling and filling the pipeline.
    marks = [mark for mark in recording.steps[1:] if mark.steps and mark.seconds]
    count, seconds = _total(marks, "steps"), _total(marks, "seconds")
    if count < LEAST_STEPS or seconds < LEAST_SECONDS:
        raise NotKnownError(
            f"fewer than {LEAST_STEPS} steps or {LEAST_SECONDS:.0f} s of them were marked "
            "(tfopt.Monitor marks them while fit runs)"
        )
    waited = [mark for mark in marks if mark.input_wait_s is not None]
    if _total(waited, "seconds") < seconds / 2:
        raise NotKnownError("the steps' wait for input was not measured")
    share = _total(waited, "input_wait_s") / _total(waited, "seconds")
    busy = _utilisations(recording)
    queued = all(percent >= NOT_STARVED_PERCENT for percent in busy.values())
    if share < WARNING_WAIT or (queued and len(busy) == len(recording.gpus) > 0):
        return
    yield Finding(
        "starved_by_input",
        "serious" if share >= SERIOUS_WAIT else "warning",
        f"Steps spent {100 * share:.0f} % of their time waiting for batches.",
        (
            _figure("input wait", 100 * share, "% of the step"),
            _figure("step", 1000 * seconds / count, "ms"),
            *(_figure(f"{label} utilisation", percent, "%") for label, percent in busy.items()),
        ),
        "read and prepare batches in parallel and ahead of the step; cache data that fit",
        'tfopt.Pipeline(cache="memory")',
    )


def _total(marks: Sequence[StepMark], name: str) -> float:
    return float(sum(getattr(mark, name) for mark in marks))


def _utilisations(recording: Recording) -> dict[str, float]:
    """Return the mean utilisation of each GPU that reports it."""
    means = {}
    for place in range(len(recording.gpus)):
        gpu = Trace(recording, place)
        with suppress(NotKnownError):
            means[gpu.label] = statistics.fmean(gpu.values("utilisation_percent"))
    return means


def host_memory(recording: Recording) -> Iterator[Finding]:
    """Find memory, of the container or else the machine, that is nearly full."""
    host = Trace(recording)
    newest = host.readings[-1]
    if newest.memory_limit_mib is not None:
        whose, limit = "the container's limit", newest.memory_limit_mib
        used = host.values("memory_in_limit_mib")[-1]
    else:
        used = host.values("memory_used_mib")[-1]
        whose, limit = "the machine's memory", host.values("memory_total_mib")[-1]
    if used < NEARLY_FULL * limit:
        return
    own = "" if newest.rss_mib is None else _figure("of it this process", newest.rss_mib, "MiB")
    yield Finding(
        "host_memory",
        "serious" if used >= FULL * limit else "warning",
        f"{100 * used / limit:.0f} % of {whose} ({limit:.0f} MiB) is in use.",
        tuple(filter(None, (_figure("in use", used, "MiB"), own))),
        "cache on disk instead of in memory, use a smaller shuffle buffer, keep no batches in "
        "lists; a process over the limit is killed without a message",
        'tfopt.Pipeline(cache="file:/path")',
    )


_CAUSES: dict[str, tuple[Severity, str]] = {
    "heat": (
        "serious",
        "improve the cooling: fans, dust, the board's slot, the room; or lower the power limit, "
        "which costs less than throttling",
    ),
    "power": (
        "hint",
        "no action needed: under full load a board runs at its limit. A higher limit is faster "
        "if the board allows it (nvidia-smi -q -d POWER), a lower one may take less energy per "
        "example",
    ),
    "hardware": (
        "serious",
        "check the power supply, its cables and the board (nvidia-smi -q -d PERFORMANCE, "
        "dmesg | grep -i nvrm)",
    ),
}
_CLOCK_FIGURES = (
    ("sm_clock_mhz", "SM clock", "MHz"),
    ("max_sm_clock_mhz", "its highest", "MHz"),
    ("temperature_c", "temperature", "°C"),
    ("slowdown_temperature_c", "slowdown at", "°C"),
    ("power_w", "power", "W"),
    ("power_limit_w", "power limit", "W"),
)


def throttled(gpu: Trace) -> Iterator[Finding]:
    """Find clocks that heat, the power limit or the hardware throttles, according to NVML."""
    known = len(gpu.values("clock_reasons"))
    for cause, (severity, action) in _CAUSES.items():
        readings = [reading for reading in gpu.readings if cause in _causes(reading)]
        if len(readings) < max(2, THROTTLED_SHARE * known):
            continue
        names = ", ".join(sorted({name for reading in readings for name in reading.throttled_by}))
        evidence = [
            _figure(name, statistics.median(values), unit)
            for metric, name, unit in _CLOCK_FIGURES
            if (
                values := [v for reading in readings if (v := getattr(reading, metric)) is not None]
            )
        ]
        yield Finding(
            f"throttled_by_{cause}",
            severity,
            f"{gpu.label} was throttled by {names} in {100 * len(readings) / known:.0f} % of the "
            "samples.",
            tuple(evidence),
            action,
            gpu=gpu.place,
        )


def _causes(reading: GpuReading) -> set[str | None]:
    """Return the causes of throttling; a slowdown by the hardware with heat is heat."""
    causes: set[str | None] = {reason.cause for reason in reading.clock_reasons or ()}
    return causes - {"hardware"} if "heat" in causes else causes


def another_process(gpu: Trace) -> Iterator[Finding]:
    """Find several processes with memory of one GPU, as NVML lists them."""
    lists = gpu.values("processes")
    large = [[p for p in processes if p.mib is None or p.mib >= LEAST_MIB] for processes in lists]
    shared = [processes for processes in large if len(processes) > 1]
    if len(shared) < max(2, SHARED_SHARE * len(lists)):
        return
    last = shared[-1]
    named = ", ".join(f"{process.name or 'a process'} ({process.pid})" for process in last[:4])
    yield Finding(
        "another_process",
        "warning",
        f"{gpu.label} is shared by {len(last)} processes: {named}.",
        tuple(_figure(f"memory of {p.pid}", p.mib, "MiB") for p in last[:4] if p.mib),
        "end the other process, or train on another GPU (tfopt.Place): they share its time and "
        "memory. In a container the process ids may be those of the host",
        gpu=gpu.place,
    )


def gpu_unused(recording: Recording) -> Iterator[Finding]:
    """Find GPUs that were idle while another one computed."""
    busy = _utilisations(recording)
    idle = [label for label, percent in busy.items() if percent < IDLE_PERCENT]
    if idle and max(busy.values()) >= USED_PERCENT:
        yield Finding(
            "gpu_unused",
            # Outside a training, other users' GPUs are listed too.
            "serious" if recording.steps else "hint",
            f"{', '.join(idle)} did nothing while another GPU computed.",
            tuple(_figure(f"{label} utilisation", percent, "%") for label, percent in busy.items()),
            "train on all of them, or free the idle ones for others (CUDA_VISIBLE_DEVICES)",
            "tfopt.Distribute()",
        )
