"""GPUs that are shared with others, or share the work unevenly.

The thresholds are tfopt's own.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tfopt.monitor.findings.finding import (
    Evidence,
    Finding,
    GpuTrace,
    Series,
    Severity,
    boards,
    gpu_traces,
    marks_after_first,
)
from tfopt.monitor.readings import GpuProcess, GpuReading, Recording, StepMark

# A power limit worth lowering: energy for each example against examples a second.
#
# Guarantees: a lower limit is only recommended where the training was measured under it, in this
# recording; otherwise it is said what to measure. Where the recording's GPUs tell an energy
# counter that is used, and else power over time.

# Below that, less energy costs more in time than most would give; tfopt's own choice.
LEAST_SAVING = 0.05
MOST_SLOWER = 0.05
# Marks under each limit, to know how much they scatter.
LEAST_MARKS = 5
# What draws less than that is not held by its limit, and a lower one would save nothing at first.
AT_LIMIT = 0.90


@dataclass(frozen=True)
class _Under:
    """What was measured under one limit: quartiles of examples/s and of J an example."""

    limit_w: float
    rates: tuple[float, ...]
    joules: tuple[float, ...]
    begun_s: float
    ended_s: float


def power_cap(recording: Recording) -> list[Finding]:
    """Compares the limits that the training ran under."""
    measured = _measured(recording)
    if len(measured) > 1:
        return _compared(measured)
    return _what_to_measure(recording)


def _compared(measured: list[_Under]) -> list[Finding]:
    highest = max(measured, key=lambda each: each.limit_w)
    best = min(measured, key=lambda each: each.joules[1])
    saved = 1 - best.joules[1] / highest.joules[1]
    slower = 1 - best.rates[1] / highest.rates[1]
    # Quartiles that overlap are no difference.
    clear = best.joules[2] < highest.joules[0]
    if best is highest or not clear or saved < LEAST_SAVING or slower > MOST_SLOWER:
        return []
    times = (min(each.begun_s for each in measured), max(each.ended_s for each in measured))
    lost = f"{100 * slower:.1f} % slower" if slower > 0 else "no slower"
    return [
        Finding(
            "power_cap",
            "hint",
            f"At a limit of {best.limit_w:.0f} W an example took {100 * saved:.0f} % less energy "
            f"than at {highest.limit_w:.0f} W, and training was {lost}.",
            tuple(
                Evidence(f"{name} at {each.limit_w:.0f} W", value, unit, *times)
                for each in (highest, best)
                for name, value, unit in (
                    ("energy", each.joules[1], "J an example"),
                    ("speed", each.rates[1], "examples/s"),
                )
            ),
            f"measured under {len(measured)} limits in this recording; medians whose quartiles "
            "do not overlap",
            f"sudo nvidia-smi -pl {best.limit_w:.0f}",
        )
    ]


def _measured(recording: Recording) -> list[_Under]:
    """By power limit, the marks that ran whole under it."""
    gpus = boards(recording)
    limits = [gpu.series("power_limit_w") for gpu in gpus]
    energies = [_energy(gpu.series("energy_j"), gpu.series("power_w")) for gpu in gpus]
    by_limit: dict[float, list[tuple[StepMark, float]]] = defaultdict(list)
    for mark in marks_after_first(recording):
        if not gpus or not mark.examples or not mark.seconds:
            continue
        times = (mark.ended_s - mark.seconds, mark.ended_s)
        limit = [_constant(series, *times) for series in limits]
        spent = [_between(series, *times) for series in energies]
        if None not in limit and None not in spent:
            by_limit[sum(x or 0.0 for x in limit)].append((mark, sum(x or 0.0 for x in spent)))
    found = []
    for total, marks in sorted(by_limit.items()):
        if len(marks) < LEAST_MARKS:
            continue
        rates = [(m.examples or 0) / (m.seconds or 1.0) for m, _ in marks]
        joules = [spent / (m.examples or 1) for m, spent in marks]
        found.append(
            _Under(
                total / len(gpus),
                tuple(statistics.quantiles(rates, n=4)),
                tuple(statistics.quantiles(joules, n=4)),
                marks[0][0].ended_s,
                marks[-1][0].ended_s,
            )
        )
    return found


def _energy(counter: Series, power: Series) -> Series:
    """Joules since some moment."""
    if counter.enough:
        return counter
    total, at_last, sums = 0.0, None, []
    for at, watts in zip(power.times, power.values, strict=True):
        total += 0.0 if at_last is None else watts * (at - at_last)
        at_last = at
        sums.append(total)
    return Series(power.times, tuple(sums), power.asked)


def _between(series: Series, begun_s: float, ended_s: float) -> float | None:
    """How much a counter grew, by straight lines between its samples; None beyond them."""
    begun, ended = _at(series, begun_s), _at(series, ended_s)
    if begun is None or ended is None or ended <= begun:
        return None
    return ended - begun


def _at(series: Series, at: float) -> float | None:
    place = bisect_left(series.times, at)
    if not series.times or place == len(series.times) or at < series.times[0]:
        return None
    if series.times[place] == at:
        return series.values[place]
    before, after = series.times[place - 1], series.times[place]
    part = (at - before) / (after - before)
    return series.values[place - 1] + part * (series.values[place] - series.values[place - 1])


def _constant(series: Series, begun_s: float, ended_s: float) -> float | None:
    """The limit, if it was the same from the sample before to the sample after."""
    first = max(0, bisect_right(series.times, begun_s) - 1)
    seen = set(series.values[first : bisect_left(series.times, ended_s) + 1])
    return seen.pop() if len(seen) == 1 else None


def _what_to_measure(recording: Recording) -> list[Finding]:
    found = []
    for gpu in boards(recording):
        told = recording.gpus[gpu.place]
        power, limit = gpu.series("power_w"), gpu.series("power_limit_w")
        if not power.enough or not limit.values or len(set(limit.values)) > 1:
            continue
        if power.mean < AT_LIMIT * limit.values[-1]:
            continue
        less = round(0.8 * limit.values[-1])
        found.append(
            Finding(
                "power_cap",
                "hint",
                f"{gpu.label} draws what its limit of {limit.values[-1]:.0f} W allows; whether a "
                "lower one saves energy was not measured.",
                (power.evidence("power", power.mean, "W"),),
                "measured, under one limit only",
                "change the limit while tfopt.Monitor watches a training, and look at the findings "
                f"after it: sudo nvidia-smi -i {told.part_of or told.uuid} -pl {less}",
                None,
                gpu.place,
            )
        )
    return found


# Of the samples; a process that looks at the GPU for a moment (nvidia-smi) is none that computes.
SHARED_SHARE = 0.20
# A CUDA context alone is 100 to 500 MiB.
LEAST_MIB = 50.0
# Of the busiest GPU.
USED_PERCENT = 30.0
IDLE_PERCENT = 5.0
UNEVEN_POINTS = 20.0
# GPUs that wait for another one in an exchange look busy (NCCL's kernels spin), and draw less.
UNEVEN_POWER = 0.75
UNEVEN_CLOCK = 0.90


def another_process(recording: Recording) -> list[Finding]:
    """Two processes or more hold memory of one GPU; the same ones on several are one finding."""
    found: list[Finding] = []
    together: dict[frozenset[_Who], list[_Shared]] = defaultdict(list)
    # Processes on a divided GPU (MIG), each in a part of its own, share neither time nor memory.
    divided = {gpu.part_of for gpu in recording.gpus}
    for gpu in gpu_traces(recording):
        if recording.gpus[gpu.place].uuid in divided:
            continue
        asked = [(at, r.processes) for at, r in gpu.readings() if r.processes is not None]
        if not asked:
            found.append(gpu.lacks("another_process", "processes"))
            continue
        shared = [(at, held) for at, each in asked if len(held := _holders(each)) > 1]
        if len(shared) >= max(2, SHARED_SHARE * len(asked)):
            each = _Shared(
                gpu, (shared[0][0], shared[-1][0]), len(shared) / len(asked), _most(shared)
            )
            together[frozenset(each.most)].append(each)
    taken = {each.gpu.place for group in together.values() for each in group}
    free = next((n for n in range(len(recording.gpus)) if n not in taken), None)
    return [_told_shared(group, free) for group in together.values()] + found


_Who = tuple[int, str | None]


@dataclass(frozen=True)
class _Shared:
    """One GPU, when and in which part of the samples it was shared, and the most that each held."""

    gpu: GpuTrace
    times: tuple[float, float]
    share: float
    most: Mapping[_Who, float]


def _holders(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    return tuple(each for each in processes if each.mib is None or each.mib >= LEAST_MIB)


def _most(shared: list[tuple[float, tuple[GpuProcess, ...]]]) -> dict[_Who, float]:
    most: dict[_Who, float] = defaultdict(float)
    for _, held in shared:
        for each in held:
            most[each.pid, each.name] = max(most[each.pid, each.name], each.mib or 0.0)
    return dict(most)


def _told_shared(group: list[_Shared], free: int | None) -> Finding:
    """Of all GPUs that the same processes share; ``free`` is one that nobody shares."""
    first = group[0].gpu
    times = (min(each.times[0] for each in group), max(each.times[1] for each in group))
    held: dict[_Who, float] = defaultdict(float)
    for each in group:
        for who, mib in each.most.items():
            held[who] += mib
    largest = sorted(held.items(), key=lambda each: -each[1])
    named = ", ".join(f"{name or 'a process'} ({pid})" for (pid, name), _ in largest[:4])
    places = ", ".join(str(each.gpu.place) for each in group)
    where = f"{first.label} is" if len(group) == 1 else f"GPUs {places} are each"
    share = 100 * max(each.share for each in group)
    return Finding(
        "another_process",
        "warning",
        f"{where} shared by {len(held)} processes: {named}.",
        (
            Evidence("shared", share, "% of the samples", *times),
            *(Evidence(f"memory of {pid}", mib, "MiB", *times) for (pid, _), mib in largest[:4]),
        ),
        "told by the driver; in a container it may number processes as the host does",
        "end the other one, or train on another GPU: they take turns, and share the memory",
        f"tfopt.Place(gpus=({free},))" if first.place == 0 and free is not None else None,
        first.place,
    )


def out_of_balance(recording: Recording) -> list[Finding]:
    """Of several GPUs, one that does nothing, or one that the others wait for."""
    # Parts of one GPU (MIG) are of different sizes, and share clocks and power.
    gpus = [gpu for gpu in gpu_traces(recording) if recording.gpus[gpu.place].part_of is None]
    if len(gpus) < 2:
        return []
    busy = [gpu.series("utilisation_percent") for gpu in gpus]
    for gpu, series in zip(gpus, busy, strict=True):
        if not series.enough:
            return [gpu.lacks("out_of_balance", "utilisation_percent")]
    means = [series.mean for series in busy]
    if max(means) < USED_PERCENT:
        return []
    idle = [gpu for gpu, mean in zip(gpus, means, strict=True) if mean < IDLE_PERCENT]
    # Who does not watch a training of his own sees the GPUs of others, and those left for others.
    severity: Severity = "serious" if recording.steps else "hint"
    found = [_unused(idle, gpus, busy, severity)] if idle else []
    used = [(gpu, series) for gpu, series in zip(gpus, busy, strict=True) if gpu not in idle]
    if len(used) > 1:
        found += _uneven([gpu for gpu, _ in used], [series for _, series in used])
    return found


def _unused(
    idle: list[GpuTrace], gpus: list[GpuTrace], busy: list[Series], severity: Severity
) -> Finding:
    labels = ", ".join(gpu.label for gpu in idle)
    return Finding(
        "gpu_unused",
        severity,
        f"{labels} did nothing while another one computed.",
        tuple(
            series.evidence(f"GPU {gpu.place} utilisation", series.mean, "%")
            for gpu, series in zip(gpus, busy, strict=True)
        ),
        "measured",
        "train on all of them, or leave the idle ones to somebody else (CUDA_VISIBLE_DEVICES)",
        "tfopt.Distribute()",
        idle[0].place if len(idle) == 1 else None,
    )


def _uneven(used: list[GpuTrace], busy: list[Series]) -> list[Finding]:
    names = {gpu.recording.gpus[gpu.place].name for gpu in used}
    if len(names) > 1:
        return [
            Finding(
                "out_of_balance",
                "warning",
                f"GPUs of {len(names)} models work together: {', '.join(sorted(names))}.",
                tuple(
                    series.evidence(f"GPU {gpu.place} utilisation", series.mean, "%")
                    for gpu, series in zip(used, busy, strict=True)
                ),
                "told by the driver; which one is slower, tfopt.replica_times measures",
                "replicas get equal shares, so all wait for the slowest: train on equal GPUs",
            )
        ]
    means = [series.mean for series in busy]
    if max(means) - min(means) >= UNEVEN_POINTS:
        return [_told(used, busy, "utilisation", "%", "measured")]
    for metric, name, unit, least in (
        ("power_w", "power", "W", UNEVEN_POWER),
        ("sm_clock_mhz", "SM clock", "MHz", UNEVEN_CLOCK),
    ):
        # What heat or power holds down is a finding of its own.
        series = [gpu.series(metric, _free) for gpu in used]
        if all(each.enough for each in series):
            of = [each.mean for each in series]
            if max(of) > 0 and min(of) / max(of) < least:
                sure = "likely: equal GPUs at equal work draw and clock alike"
                return [_told(used, series, name, unit, sure)]
    lacking = [gpu for gpu in used if not gpu.series("power_w").enough]
    return [each.lacks("out_of_balance", "power_w") for each in lacking[:1]]


def _free(reading: GpuReading) -> bool:
    return not any(reason.throttles for reason in reading.clock_reasons or ())


def _told(used: list[GpuTrace], series: list[Series], name: str, unit: str, sure: str) -> Finding:
    ordered = sorted(zip(used, series, strict=True), key=lambda each: each[1].mean)
    (low, least), (high, most) = ordered[0], ordered[-1]
    return Finding(
        "out_of_balance",
        "warning",
        f"The GPUs do not work alike: {name} is {least.mean:.0f} {unit} on {low.label} "
        f"and {most.mean:.0f} on {high.label}.",
        tuple(
            each.evidence(f"GPU {gpu.place} {name}", each.mean, unit)
            for gpu, each in zip(used, series, strict=True)
        ),
        sure,
        "tfopt.replica_times() tells which one the others wait for, and for what; "
        "look at the heat, the PCIe link and the other processes of the odd one",
        None,
    )
