"""Find GPUs that are shared with others, or share the work unevenly.

The thresholds are tfopt's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tfopt.monitor.findings.finding import (
    Evidence,
    Finding,
    Series,
    Severity,
    Trace,
    gpu_traces,
)
from tfopt.monitor.readings import Recording

# Of the samples; a process that looks at the GPU for a moment (nvidia-smi) is none that computes.
SHARED_SHARE = 0.20
# A CUDA context alone is 100 to 500 MiB.
LEAST_MIB = 50.0
# Of the busiest GPU.
USED_PERCENT = 30.0
IDLE_PERCENT = 5.0
UNEVEN_POINTS = 20.0

# A process, by its number and name, with the most memory that it held.
_Held = dict[tuple[int, str | None], float]


def another_process(recording: Recording) -> list[Finding]:
    """Find processes that hold memory of one GPU together; one finding for the same processes."""
    found: list[Finding] = []
    together: dict[frozenset[tuple[int, str | None]], list[tuple[Trace, _Held]]]
    together = defaultdict(list)
    # Processes in different parts of a divided GPU (MIG) share neither time nor memory.
    divided = {gpu.part_of for gpu in recording.gpus}
    for gpu in gpu_traces(recording):
        if recording.gpus[gpu.place].uuid in divided:
            continue
        listed = [each.processes for _, each in gpu.readings() if each.processes is not None]
        if not listed:
            found.append(gpu.lacks("another_process", "processes"))
            continue
        at_once = [
            [who for who in each if who.mib is None or who.mib >= LEAST_MIB] for each in listed
        ]
        shared = [each for each in at_once if len(each) > 1]
        if len(shared) >= max(2, SHARED_SHARE * len(listed)):
            most: _Held = defaultdict(float)
            for who in (who for each in shared for who in each):
                most[who.pid, who.name] = max(most[who.pid, who.name], who.mib or 0.0)
            together[frozenset(most)].append((gpu, most))
    taken = {gpu.place for group in together.values() for gpu, _ in group}
    free = next((n for n in range(len(recording.gpus)) if n not in taken), None)
    return [_shared(group, free) for group in together.values()] + found


def _shared(group: list[tuple[Trace, _Held]], free: int | None) -> Finding:
    """Return the finding of all GPUs that the same processes share; nobody shares ``free``."""
    first, most = group[0]
    held = {who: sum(each[who] for _, each in group) for who in most}
    largest = sorted(held.items(), key=lambda each: -each[1])[:4]
    named = ", ".join(f"{name or 'a process'} ({pid})" for (pid, name), _ in largest)
    places = ", ".join(str(gpu.place) for gpu, _ in group)
    where = f"{first.label} is" if len(group) == 1 else f"GPUs {places} are each"
    return Finding(
        "another_process",
        "warning",
        f"{where} shared by {len(held)} processes: {named}.",
        tuple(Evidence(f"memory of {pid}", mib, "MiB") for (pid, _), mib in largest),
        "reported by the driver; in a container it may number processes as the host does",
        "end the other one, or train on another GPU: they take turns, and share the memory",
        f"tfopt.Place(gpus=({free},))" if first.place == 0 and free is not None else None,
        first.place,
    )


def out_of_balance(recording: Recording) -> list[Finding]:
    """Find one of several GPUs that does nothing, or that the others wait for."""
    # Parts of one GPU (MIG) are of different sizes, and share clocks and power.
    gpus = [gpu for gpu in gpu_traces(recording) if recording.gpus[gpu.place].part_of is None]
    if len(gpus) < 2:
        return []
    busy = {gpu: gpu.series("utilisation_percent") for gpu in gpus}
    for gpu, series in busy.items():
        if not series.enough:
            return [gpu.lacks("out_of_balance", "utilisation_percent")]
    if max(series.mean for series in busy.values()) < USED_PERCENT:
        return []
    idle = [gpu for gpu, series in busy.items() if series.mean < IDLE_PERCENT]
    # Outside a training, one sees the GPUs of others, and those left for others.
    severity: Severity = "serious" if recording.steps else "hint"
    found = [_unused(idle, busy, severity)] if idle else []
    used = {gpu: series for gpu, series in busy.items() if gpu not in idle}
    if len(used) > 1:
        found += _uneven(used)
    return found


_Means = Mapping[Trace, Series]


def _unused(idle: list[Trace], busy: _Means, severity: Severity) -> Finding:
    labels = ", ".join(gpu.label for gpu in idle)
    return Finding(
        "gpu_unused",
        severity,
        f"{labels} did nothing while another one computed.",
        _evidence(busy),
        "measured",
        "train on all of them, or leave the idle ones to somebody else (CUDA_VISIBLE_DEVICES)",
        "tfopt.Distribute()",
        idle[0].place if len(idle) == 1 else None,
    )


def _uneven(busy: _Means) -> list[Finding]:
    names = {gpu.recording.gpus[gpu.place].name for gpu in busy}
    if len(names) > 1:
        return [
            Finding(
                "out_of_balance",
                "warning",
                f"GPUs of {len(names)} models work together: {', '.join(sorted(names))}.",
                _evidence(busy),
                "reported by the driver",
                "replicas get equal shares, so all wait for the slowest: train on equal GPUs",
            )
        ]
    means = [series.mean for series in busy.values()]
    if max(means) - min(means) < UNEVEN_POINTS:
        return []
    low, *_, high = sorted(busy, key=lambda gpu: busy[gpu].mean)
    return [
        Finding(
            "out_of_balance",
            "warning",
            f"The GPUs do not work alike: utilisation is {busy[low].mean:.0f} % on {low.label} "
            f"and {busy[high].mean:.0f} on {high.label}.",
            _evidence(busy),
            "measured",
            "look at the heat, the PCIe link and the other processes of the odd one",
        )
    ]


def _evidence(busy: _Means) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"GPU {gpu.place} utilisation", each.mean, "%") for gpu, each in busy.items()
    )
