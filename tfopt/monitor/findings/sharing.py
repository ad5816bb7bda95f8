"""GPUs that are shared with others, or share the work unevenly.

The thresholds are tfopt's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tfopt.monitor.findings.finding import Evidence, Finding, Severity
from tfopt.monitor.findings.traces import GpuTrace, Series, gpu_traces
from tfopt.monitor.readings import GpuProcess, GpuReading, Recording

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
