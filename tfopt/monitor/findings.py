"""Find what holds a training up: apply all rules to a recording.

Rules ask the machine nothing, so that a recording gives the same findings whenever it is read. The
thresholds are tfopt's own, but where a comment names another source.
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
"""The most serious first. A hint may be as it was meant, such as a limit that somebody set."""

# NVML's utilisation is itself a mean over up to a second ("between 1 second and 1/6 second
# depending on the product", nvmlUtilization_t): shorter stretches hold few different values.
LEAST_SECONDS = 5.0
LEAST_SAMPLES = 8
# A metric that is known in fewer of the samples may be known in special ones only.
LEAST_KNOWN = 0.5
# Fewer steps are no steady state.
LEAST_STEPS = 10
# Shares of the step spent waiting. TensorFlow's profiler calls 5 % moderately and 20 % highly
# input-bound (op_stats_to_input_pipeline_analysis.cc), and XProf suggests something from 10 % on
# (input_bound_rule.h).
WARNING_WAIT = 0.10
SERIOUS_WAIT = 0.20
# A GPU that computes nearly all the time has work queued: Python then waits ahead of it, and for
# nothing that the GPU would have done.
NOT_STARVED_PERCENT = 95.0
# Of the memory; the kernel's out-of-memory killer and a container's come without warning.
NEARLY_FULL = 0.90
FULL = 0.97
# Of the samples; a moment now and then is how a GPU regulates itself.
THROTTLED_SHARE = 0.05
# A GPU that did next to nothing, beside one that computed.
IDLE_PERCENT = 5.0
USED_PERCENT = 30.0
# Of the samples; a process that looks at the GPU for a moment (nvidia-smi) does not compute on it.
SHARED_SHARE = 0.20
# A CUDA context alone is 100 to 500 MiB.
LEAST_MIB = 50.0


@dataclass(frozen=True)
class Finding:
    """What a rule found in a recording.

    Attributes:
        rule: Its name, which stays the same from release to release.
        message: One sentence.
        evidence: The figures it stands on, with their units.
        action: What to do.
        transform: The transform to try, as it stands in a script; None where none helps.
        gpu: Its place in the recording; None for the host, or for several GPUs.
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
    """A rule lacks what it needs; the text says what."""


@dataclass(frozen=True)
class Trace:
    """The samples of one GPU of a recording, or of its host where ``place`` is None."""

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
        """Return the known values of a metric, in order; refuse where they are too few."""
        readings = self.readings
        values = [v for each in readings if (v := getattr(each, metric)) is not None]
        if len(values) >= max(LEAST_SAMPLES, LEAST_KNOWN * len(readings)):
            return values
        recording, place = self.recording, self.place
        missing = recording.host_missing if place is None else recording.gpus[place].missing
        why = f" ({missing[metric]})" if metric in missing else ""
        known = f"{len(values) or 'none'} of {len(readings)} samples"
        raise NotKnownError(f"{self.label}: {metric} was known in {known}{why}")


def findings(recording: Recording) -> list[Finding]:
    """Return what all rules find, the most serious first; last, in one finding, the not judged.

    What was sampled before the first mark does not count: there the model is built and compiled.
    An empty list is of a recording in which every rule had what it needs and found nothing.

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
    found: list[Finding] = []
    lacking = []
    gpus = [Trace(recording, place) for place in range(len(recording.gpus))]
    rules = [partial(rule, recording) for rule in (starved_by_input, host_memory, gpu_unused)]
    rules += [partial(rule, gpu) for rule in (throttled, another_process) for gpu in gpus]
    for rule in rules:
        try:
            found += rule()
        except NotKnownError as error:
            lacking.append(f"{rule.func.__name__}: {error}")
    found.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    if not gpus:
        lacking.append(f"the rules about GPUs: {recording.no_gpu_reason}")
    if lacking:
        found.append(Finding("not_judged", "not judged", f"Not judged: {'; '.join(lacking)}."))
    return found


def _while_training(recording: Recording) -> tuple[Sample, ...]:
    samples, marks = recording.samples, recording.steps
    if len(marks) < 2:
        return samples
    begun_s, ended_s = marks[0].ended_s, marks[-1].ended_s
    return tuple(sample for sample in samples if begun_s <= sample.at_s <= ended_s)


def _figure(name: str, value: float, unit: str) -> str:
    return f"{name} {quantity(value, 2)} {unit}"


def starved_by_input(recording: Recording) -> Iterator[Finding]:
    """Find steps that wait for their batches while no GPU has work queued."""
    # In the first mark the step is compiled and the pipeline filled.
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
        f"Steps spent {100 * share:.0f} % of their time waiting for their batches.",
        (
            _figure("input wait", 100 * share, "% of the step"),
            _figure("step", 1000 * seconds / count, "ms"),
            *(_figure(f"{label} utilisation", percent, "%") for label, percent in busy.items()),
        ),
        "read and prepare batches in parallel and ahead of the step; cache what fits",
        'tfopt.Pipeline(cache="memory")',
    )


def _total(marks: Sequence[StepMark], name: str) -> float:
    return float(sum(getattr(mark, name) for mark in marks))


def _utilisations(recording: Recording) -> dict[str, float]:
    """Return the mean utilisation of each GPU that tells it."""
    found = {}
    for place in range(len(recording.gpus)):
        gpu = Trace(recording, place)
        with suppress(NotKnownError):
            found[gpu.label] = statistics.fmean(gpu.values("utilisation_percent"))
    return found


def host_memory(recording: Recording) -> Iterator[Finding]:
    """Find that the container's memory, or else the machine's, is nearly used up."""
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
        "cache on disk instead of in memory, shuffle among fewer examples, keep no batches in "
        "lists; a process that is over the limit is killed without a word",
        'tfopt.Pipeline(cache="file:/path")',
    )


_CAUSES: dict[str, tuple[Severity, str]] = {
    "heat": (
        "serious",
        "more air: fans, dust, the board's place in the case, the room; or a lower power limit, "
        "which loses less than throttling",
    ),
    "power": (
        "hint",
        "nothing need be done: under full load a board runs at its limit. A higher one is faster "
        "where the board allows it (nvidia-smi -q -d POWER), a lower one may take less energy an "
        "example",
    ),
    "hardware": (
        "serious",
        "look at the power supply, its cables and the board (nvidia-smi -q -d PERFORMANCE, "
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
    """Find clocks held down by heat, by the power limit, or by the hardware, as NVML says."""
    known = len(gpu.values("clock_reasons"))
    for cause, (severity, action) in _CAUSES.items():
        held = [each for each in gpu.readings if cause in _causes(each)]
        if len(held) < max(2, THROTTLED_SHARE * known):
            continue
        names = ", ".join(sorted({name for each in held for name in each.throttled_by}))
        evidence = [
            _figure(name, statistics.median(values), unit)
            for metric, name, unit in _CLOCK_FIGURES
            if (values := [v for each in held if (v := getattr(each, metric)) is not None])
        ]
        yield Finding(
            f"throttled_by_{cause}",
            severity,
            f"{gpu.label} was held down by {names} in {100 * len(held) / known:.0f} % of the "
            "samples.",
            tuple(evidence),
            action,
            gpu=gpu.place,
        )


def _causes(reading: GpuReading) -> set[str | None]:
    """Return what holds the clocks down; where heat makes the hardware slow down, it is heat."""
    causes: set[str | None] = {each.cause for each in reading.clock_reasons or ()}
    return causes - {"hardware"} if "heat" in causes else causes


def another_process(gpu: Trace) -> Iterator[Finding]:
    """Find processes that hold memory of one GPU together, as NVML lists them."""
    lists = gpu.values("processes")
    large = [[who for who in held if who.mib is None or who.mib >= LEAST_MIB] for held in lists]
    shared = [held for held in large if len(held) > 1]
    if len(shared) < max(2, SHARED_SHARE * len(lists)):
        return
    last = shared[-1]
    named = ", ".join(f"{who.name or 'a process'} ({who.pid})" for who in last[:4])
    yield Finding(
        "another_process",
        "warning",
        f"{gpu.label} is shared by {len(last)} processes: {named}.",
        tuple(_figure(f"memory of {who.pid}", who.mib, "MiB") for who in last[:4] if who.mib),
        "end the other one, or train on another GPU (tfopt.Place): they take turns, and share the "
        "memory. In a container the driver may number processes as the host does",
        gpu=gpu.place,
    )


def gpu_unused(recording: Recording) -> Iterator[Finding]:
    """Find GPUs that did nothing while another one computed."""
    busy = _utilisations(recording)
    idle = [label for label, percent in busy.items() if percent < IDLE_PERCENT]
    if idle and max(busy.values()) >= USED_PERCENT:
        yield Finding(
            "gpu_unused",
            # Outside a training, one sees the GPUs of others, and those left for others.
            "serious" if recording.steps else "hint",
            f"{', '.join(idle)} did nothing while another one computed.",
            tuple(_figure(f"{label} utilisation", percent, "%") for label, percent in busy.items()),
            "train on all of them, or leave the idle ones to somebody else (CUDA_VISIBLE_DEVICES)",
            "tfopt.Distribute()",
        )
