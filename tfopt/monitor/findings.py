"""Find what holds a training up: apply all rules to a recording.

Rules ask the machine nothing, so that a recording gives the same findings whenever it is read. The
thresholds are tfopt's own, but where a comment names another source.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tfopt.monitor.readings import GpuReading, Recording, StepMark

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
# Of the time that was watched.
HELD_BACK_SHARE = 0.05
# Of the samples; a moment now and then is how a GPU regulates itself.
THROTTLED_SHARE = 0.05
# Of the clock; a smaller loss is within what boost clocks do by themselves.
COSTLY = 0.10
# Boost clocks end somewhat below the highest; base clocks of data-centre GPUs are at 0.75 to 0.8.
LOW_CLOCK = 0.80
# Unthrottled samples needed to compare with them; with fewer, the highest clock is what is lost.
LEAST_FREE = 3
# A GPU that computed in most of the moment.
BUSY_PERCENT = 80.0
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


def findings(recording: Recording) -> list[Finding]:
    """Return what all rules find, the most serious first; last, in one finding, the not judged.

    An empty list is of a recording in which every rule had what it needs and found nothing.

    Example:
        >>> for finding in findings(monitor.recording):
        ...     print(finding, finding.action)
    """
    samples = recording.samples
    seconds = samples[-1].at_s - samples[0].at_s if samples else 0.0
    if len(samples) < LEAST_SAMPLES or seconds < LEAST_SECONDS:
        why = (
            f"{len(samples)} samples over {seconds:.1f} s are too few to judge: "
            f"{LEAST_SAMPLES} over {LEAST_SECONDS:.0f} s are needed."
        )
        return [_not_judged("too_few_samples", why)]
    found = [finding for rule in RULES for finding in rule(recording)]
    judged = [finding for finding in found if finding.severity != "not judged"]
    # Sorting is stable: within a severity, the order of the rules.
    judged.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    lacking = [f"{each.rule}: {each.message}" for each in found if each.severity == "not judged"]
    if not recording.gpus:
        lacking.append(f"the rules about GPUs: {recording.no_gpu_reason}")
    if lacking:
        judged.append(_not_judged("not_judged", "Not judged: " + "; ".join(lacking) + "."))
    return judged


def _not_judged(rule: str, why: str, gpu: int | None = None) -> Finding:
    """Return the finding of a rule that lacked what it needs."""
    return Finding(rule, "not judged", why, gpu=gpu)


def _figure(name: str, value: float, unit: str) -> str:
    """Return evidence with a number as people write it: 0.42, 9.7, 83, 12345."""
    places = 2 if abs(value) < 1 else 1 if abs(value) < 10 else 0
    return f"{name} {value:.{places}f} {unit}"


@dataclass(frozen=True)
class Series:
    """The known values of a metric, in order; ``asked`` counts the samples they are from."""

    times: tuple[float, ...]
    values: tuple[Any, ...]
    asked: int

    @property
    def seconds(self) -> float:
        return self.times[-1] - self.times[0] if self.times else 0.0

    @property
    def enough(self) -> bool:
        """Return whether the metric can be judged."""
        least = max(LEAST_SAMPLES, LEAST_KNOWN * self.asked)
        return len(self.values) >= least and self.seconds >= LEAST_SECONDS


class Trace:
    """One GPU of a recording, or its host, while the training ran.

    What comes before the first mark does not count: there the model is built and compiled.
    """

    def __init__(self, recording: Recording, place: int | None = None) -> None:
        """Take the samples of the GPU at ``place``, or the host's where that is None."""
        self.place = place
        self.label, self._missing = "host", recording.host_missing
        if place is not None:
            gpu = recording.gpus[place]
            self.label, self._missing = f"GPU {place} ({gpu.name})", gpu.missing
        samples, marks = recording.samples, recording.steps
        if len(marks) >= 2:
            begun_s, ended_s = marks[0].ended_s, marks[-1].ended_s
            samples = tuple(sample for sample in samples if begun_s <= sample.at_s <= ended_s)
        self.readings: list[tuple[float, Any]] = [
            (sample.at_s, sample.host if place is None else sample.gpus[place])
            for sample in samples
        ]

    def series(self, metric: str, where: Callable[[Any], bool] = lambda reading: True) -> Series:
        """Return a metric by its name, from the readings of which ``where`` is true."""
        asked = [(at_s, getattr(each, metric)) for at_s, each in self.readings if where(each)]
        known = [(at_s, value) for at_s, value in asked if value is not None]
        return Series(tuple(at for at, _ in known), tuple(value for _, value in known), len(asked))

    def lacks(self, rule: str, metric: str) -> Finding:
        """Return that the rule could not judge for want of this metric."""
        series, reason = self.series(metric), self._missing.get(metric)
        known = f"{len(series.values)} of {series.asked} samples over {series.seconds:.0f} s"
        if not series.values:
            known = f"none of {series.asked} samples"
        why = f"{self.label}: {metric} was known in {known}" + (f" ({reason})" if reason else "")
        return _not_judged(rule, why, self.place)


def _gpus(recording: Recording) -> list[Trace]:
    return [Trace(recording, place) for place in range(len(recording.gpus))]


def starved_by_input(recording: Recording) -> Iterator[Finding]:
    """Find steps that wait for their batches while no GPU has work queued."""
    # In the first mark the step is compiled and the pipeline filled.
    marks = [mark for mark in recording.steps[1:] if mark.steps and mark.seconds]
    count, seconds = _total(marks, "steps"), _total(marks, "seconds")
    if count < LEAST_STEPS or seconds < LEAST_SECONDS:
        yield _not_judged(
            "starved_by_input",
            f"fewer than {LEAST_STEPS} steps or {LEAST_SECONDS:.0f} s of them were marked "
            "(tfopt.Monitor marks them while fit runs)",
        )
        return
    waited = [mark for mark in marks if mark.input_wait_s is not None]
    if _total(waited, "seconds") < seconds / 2:
        yield _not_judged("starved_by_input", "the steps' wait for input was not measured")
        return
    share = _total(waited, "input_wait_s") / _total(waited, "seconds")
    busy = [gpu.series("utilisation_percent") for gpu in _gpus(recording)]
    queued = all(gpu.enough and statistics.fmean(gpu.values) >= NOT_STARVED_PERCENT for gpu in busy)
    if share < WARNING_WAIT or (busy and queued):
        return
    yield Finding(
        "starved_by_input",
        "serious" if share >= SERIOUS_WAIT else "warning",
        f"Steps spent {100 * share:.0f} % of their time waiting for their batches.",
        (
            _figure("input wait", 100 * share, "% of the step"),
            _figure("step", 1000 * seconds / count, "ms"),
            *(
                _figure(f"GPU {place} utilisation", statistics.fmean(gpu.values), "%")
                for place, gpu in enumerate(busy)
                if gpu.enough
            ),
        ),
        "read and prepare batches in parallel and ahead of the step; cache what fits",
        'tfopt.Pipeline(cache="memory")',
    )


def _total(marks: Sequence[StepMark], name: str) -> float:
    return float(sum(getattr(mark, name) for mark in marks))


def host_memory(recording: Recording) -> Iterator[Finding]:
    """Find that the container's memory, or else the machine's, is nearly used up."""
    host = Trace(recording)
    name, whose = "memory_in_limit_mib", "the container's limit"
    limits = host.series("memory_limit_mib").values
    if not limits:
        name, whose = "memory_used_mib", "the machine's memory"
        limits = host.series("memory_total_mib").values
    used = host.series(name)
    if not used.enough or not limits:
        yield host.lacks("host_memory", name)
        return
    limit = limits[-1]
    share = used.values[-1] / limit
    if share < NEARLY_FULL:
        return
    own = host.series("rss_mib").values[-1:]
    yield Finding(
        "host_memory",
        "serious" if share >= FULL else "warning",
        f"{100 * share:.0f} % of {whose} ({limit:.0f} MiB) is in use.",
        (
            _figure("in use", used.values[-1], "MiB"),
            *(_figure("of it this process", mib, "MiB") for mib in own),
        ),
        "cache on disk instead of in memory, shuffle among fewer examples, keep no batches in "
        "lists; a process that is over the limit is killed without a word",
        'tfopt.Pipeline(cache="file:/path")',
    )


def cpu_held_back(recording: Recording) -> Iterator[Finding]:
    """Find that a container's quota stopped the process now and then, though cores were free."""
    held = Trace(recording).series("cpu_throttled_s")
    if not held.enough:
        return  # without a quota there is nothing to count
    grown_s = held.values[-1] - held.values[0]
    if grown_s >= HELD_BACK_SHARE * held.seconds:
        yield Finding(
            "cpu_held_back",
            "warning",
            f"The container's CPU quota held its tasks back for {grown_s:.0f} s "
            f"(of all cores together) in {held.seconds:.0f} s.",
            (_figure("held back", grown_s, "s"),),
            "raise the quota (docker --cpus, resources.limits.cpu), or use fewer threads: a "
            "quota stops all of them when it is spent",
        )


# By rule, NVML's names of the reasons; what is none of them is for the hardware to look at.
_CAUSES = {
    "throttled_by_heat": ("(SwThermalSlowdown)", "(HwThermalSlowdown)"),
    "throttled_by_power": ("(SwPowerCap)",),
    "throttled_by_hardware": (),
}
_ACTIONS = {
    "throttled_by_heat": "more air: fans, dust, the board's place in the case, the room; "
    "or a lower power limit, which loses less than throttling",
    "throttled_by_power": "raise the limit if the board allows it (nvidia-smi -q -d POWER, "
    "sudo nvidia-smi -pl WATTS); 16-bit computing draws less for the same work",
    "throttled_by_hardware": "look at the power supply, its cables and the board "
    "(nvidia-smi -q -d PERFORMANCE, dmesg | grep -i nvrm)",
}
# What is no trouble gets no advice to end it.
_AT_FULL_LOAD = (
    "nothing need be done: under full load a board runs at its limit. A higher one is faster where "
    "the board allows it (nvidia-smi -q -d POWER), a lower one may take less energy an example"
)
# The only comparison that says what this very training would run at.
_BEFORE = "the clock before"

_Moments = Sequence[tuple[float, GpuReading]]


def throttled(recording: Recording) -> Iterator[Finding]:
    """Find clocks held down by heat, by the power limit, or by the hardware.

    NVML says why it holds the clocks down (nvmlClocksEventReasons); the cost is computed from the
    clocks themselves.
    """
    for gpu in _gpus(recording):
        if not gpu.series("clock_reasons").enough:
            yield gpu.lacks("throttled", "clock_reasons")
            continue
        known = [(at_s, each) for at_s, each in gpu.readings if each.clock_reasons is not None]
        for rule in _CAUSES:
            held = [(at_s, each) for at_s, each in known if rule in _rules_of(each)]
            if len(held) >= max(2, THROTTLED_SHARE * len(known)):
                yield _throttled(gpu, rule, held, known)


def _rules_of(reading: GpuReading) -> list[str]:
    """Return the rules that apply; where heat makes the hardware slow down, it is heat."""
    reasons = " ".join(reading.throttled_by)
    rules = [rule for rule, names in _CAUSES.items() if any(name in reasons for name in names)]
    if reasons and not rules:
        return ["throttled_by_hardware"]
    return rules


def _throttled(gpu: Trace, rule: str, held: _Moments, known: _Moments) -> Finding:
    share = 100 * len(held) / len(known)
    names = ", ".join(sorted({name for _, each in held for name in each.throttled_by}))
    evidence = [_figure("throttled", share, "% of the samples")]
    cost, compared = _clock_lost(held, known)
    lost = ""
    if cost is not None:
        evidence.append(_figure("clock lost", 100 * cost, f"% of {compared}"))
        lost = f", which cost {100 * cost:.0f} % of {compared}"
    for metric, name, unit in (
        ("temperature_c", "temperature", "°C"),
        ("slowdown_temperature_c", "slowdown at", "°C"),
        ("power_w", "power", "W"),
        ("power_limit_w", "power limit", "W"),
    ):
        values = [value for _, each in held if (value := getattr(each, metric)) is not None]
        if values:
            evidence.append(_figure(name, statistics.median(values), unit))
    severity = _severity(rule, cost, compared)
    since_s = held[0][0] - gpu.readings[0][0]
    return Finding(
        rule,
        severity,
        f"{gpu.label} was held down by {names} in {share:.0f} % of the samples, "
        f"first {since_s:.0f} s after the start{lost}.",
        tuple(evidence),
        _AT_FULL_LOAD if severity == "hint" else _ACTIONS[rule],
        gpu=gpu.place,
    )


def _clock_lost(held: _Moments, known: _Moments) -> tuple[float | None, str]:
    """Return the share of the clock that was lost, and compared with what; None if not known."""
    down = [each.sm_clock_mhz for _, each in held if each.sm_clock_mhz is not None]
    free = [
        each.sm_clock_mhz
        for _, each in known
        if each.sm_clock_mhz is not None and _is_busy_and_free(each)
    ]
    highest = [each.max_sm_clock_mhz for _, each in held if each.max_sm_clock_mhz]
    if down and len(free) >= LEAST_FREE:
        return max(0.0, 1 - statistics.median(down) / statistics.median(free)), _BEFORE
    if down and highest:
        return max(0.0, 1 - statistics.median(down) / highest[-1]), "the highest clock"
    return None, ""


def _severity(rule: str, cost: float | None, compared: str) -> Severity:
    costly = cost is None or cost >= COSTLY
    if rule == "throttled_by_power":
        # Under full load it is how a board is meant to run, and the highest clock is for lighter
        # work: that something was lost is known only where it computed faster in this recording.
        return "warning" if costly and compared == _BEFORE else "hint"
    return "serious" if costly else "warning"


def _is_busy_and_free(reading: GpuReading) -> bool:
    return (reading.utilisation_percent or 0.0) >= BUSY_PERCENT and not reading.throttled_by


def low_clocks(recording: Recording) -> Iterator[Finding]:
    """Find a GPU that computes at low clocks without heat, power or hardware as the reason."""
    needed = ("sm_clock_mhz", "utilisation_percent", "max_sm_clock_mhz")
    for gpu in _gpus(recording):
        lacking = [metric for metric in needed if not gpu.series(metric).enough]
        if lacking:
            yield gpu.lacks("low_clocks", lacking[0])
            continue
        clock = gpu.series("sm_clock_mhz", _is_busy_and_free)
        highest = gpu.series("max_sm_clock_mhz").values[-1]
        if not clock.enough or statistics.median(clock.values) >= LOW_CLOCK * highest:
            continue
        told = gpu.series("clock_reasons", _is_busy_and_free).values
        reasons = {reason.description for moment in told for reason in moment}
        yield Finding(
            "low_clocks",
            "warning",
            f"{gpu.label} computes at {statistics.median(clock.values):.0f} MHz of {highest:.0f}: "
            f"{', '.join(sorted(reasons)) or 'no reason is reported'}.",
            (_figure("SM clock", statistics.median(clock.values), "MHz"),),
            "reset clocks that somebody set: sudo nvidia-smi -rgc; sudo nvidia-smi -rac",
            gpu=gpu.place,
        )


def another_process(recording: Recording) -> Iterator[Finding]:
    """Find processes that hold memory of one GPU together, as NVML lists them."""
    for gpu in _gpus(recording):
        lists = gpu.series("processes").values
        if lists:
            yield from _shared(gpu, lists)
        else:
            yield gpu.lacks("another_process", "processes")


def _shared(gpu: Trace, lists: Sequence[Any]) -> Iterator[Finding]:
    at_once = [[who for who in held if who.mib is None or who.mib >= LEAST_MIB] for held in lists]
    shared = [held for held in at_once if len(held) > 1]
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
    busy: dict[str, float] = {}
    for gpu in _gpus(recording):
        utilisation = gpu.series("utilisation_percent")
        if not utilisation.enough:
            yield gpu.lacks("gpu_unused", "utilisation_percent")
            return
        busy[gpu.label] = statistics.fmean(utilisation.values)
    idle = [label for label, percent in busy.items() if percent < IDLE_PERCENT]
    if idle and max(busy.values()) >= USED_PERCENT:
        yield Finding(
            "gpu_unused",
            # Outside a training, one sees the GPUs of others, and those left for others.
            "serious" if recording.steps else "hint",
            f"{', '.join(idle)} did nothing while another one computed.",
            tuple(_figure(f"{label} utilisation", busy[label], "%") for label in busy),
            "train on all of them, or leave the idle ones to somebody else (CUDA_VISIBLE_DEVICES)",
            "tfopt.Distribute()",
        )


Rule = Callable[[Recording], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    starved_by_input,
    host_memory,
    cpu_held_back,
    throttled,
    gpu_unused,
    another_process,
    low_clocks,
)
