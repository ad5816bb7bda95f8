"""The host's processors: all busy, or held back by a container's quota.

The thresholds are tfopt's own.
"""

from __future__ import annotations

from itertools import pairwise

from tfopt.monitor.findings.finding import (
    LEAST_TREND_SECONDS,
    Ahead,
    Evidence,
    Finding,
    GpuTrace,
    HostTrace,
    Series,
    Severity,
    gpu_traces,
    long_enough,
    mean_of_cores,
    not_judged,
    reaches,
    when,
)
from tfopt.monitor.findings.gpu_rules import BUSY_PERCENT
from tfopt.monitor.readings import HostReading, Recording

# Memory that runs out: of a GPU, and of the host or its container.
#
# The thresholds are tfopt's own.

# Less than that is what an allocator takes now and then.
LEAST_GROWTH_MIB = 64.0
LEAST_GROWTH = 0.01
# Sooner than that, somebody should look now.
SOON_S = 1800.0
# TensorFlow takes nearly all memory at once, unless it is told to let it grow.
TAKEN_AT_ONCE = 0.85
# Of the host's memory; the kernel's out-of-memory killer and a container's come without warning.
NEARLY_FULL = 0.90
FULL = 0.97


def gpu_memory_ahead(recording: Recording) -> list[Finding]:
    """A GPU's memory in use grows steadily towards all there is."""
    return [found for gpu in gpu_traces(recording) if (found := _gpu_memory(gpu))]


def _gpu_memory(gpu: GpuTrace) -> Finding | None:
    rule = "gpu_memory_ahead"
    used, total = gpu.series("device_mib"), gpu.series("total_mib")
    own = gpu.series("process_mib")
    if not used.enough:
        return gpu.lacks(rule, "device_mib")
    if not total.values:
        return gpu.lacks(rule, "total_mib")
    limit = total.values[-1]
    if own.enough and min(own.values) >= TAKEN_AT_ONCE * limit:
        return not_judged(
            rule,
            f"{gpu.label}: TensorFlow took {own.median:.0f} MiB at once; what it needs of it is "
            "not told (tfopt.Place(memory_growth=True) shows it)",
            gpu.place,
        )
    # Zero throughout is what a driver tells that counts processes otherwise than the container.
    if not (own.enough and max(own.values)) and min(used.values) >= TAKEN_AT_ONCE * limit:
        return not_judged(
            rule,
            f"{gpu.label}: {used.median:.0f} MiB are held throughout, by which process is not "
            "told: TensorFlow takes nearly all at once (tfopt.Place(memory_growth=True) shows "
            "what it needs)",
            gpu.place,
        )
    if not long_enough(used):
        return not_judged(
            rule, f"{gpu.label}: a trend needs {LEAST_TREND_SECONDS:.0f} s of samples", gpu.place
        )
    ahead = reaches(used, limit, max(LEAST_GROWTH_MIB, LEAST_GROWTH * limit))
    if ahead is None:
        return None
    return Finding(
        rule,
        "serious" if ahead.soonest_s <= SOON_S else "warning",
        f"{gpu.label} runs out of memory {when(ahead)} if its use goes on growing as it does.",
        _evidence(ahead, used.values[-1], limit),
        "extrapolated by a straight line over the second half of the samples",
        "find what grows: inputs of ever new shapes, tensors kept in lists or callbacks, another "
        "process; smaller steps only put it off",
        "tfopt.Accumulate(steps=2)",
        gpu.place,
    )


def host_memory(recording: Recording) -> list[Finding]:
    """The container's limit where there is one, and else the machine's memory."""
    host = HostTrace(recording)
    limit = host.series("memory_limit_mib")
    if limit.values:
        used, name = host.series("memory_in_limit_mib"), "memory_in_limit_mib"
        whose = "the container's limit"
    else:
        limit, used = host.series("memory_total_mib"), host.series("memory_used_mib")
        name, whose = "memory_used_mib", "the machine's memory"
    if not used.enough or not limit.values:
        return [host.lacks("host_memory", name, used.told)]
    return [found] if (found := _host_memory(host, used, limit.values[-1], whose)) else []


def _host_memory(host: HostTrace, used: Series, limit: float, whose: str) -> Finding | None:
    share = used.values[-1] / limit
    ahead = (
        reaches(used, limit, max(LEAST_GROWTH_MIB, LEAST_GROWTH * limit))
        if long_enough(used)
        else None
    )
    if share < NEARLY_FULL and ahead is None:
        return None
    severity: Severity = "serious" if share >= FULL else "warning"
    told = f"{100 * share:.0f} % of {whose} ({limit:.0f} MiB) is in use"
    if ahead is not None:
        severity = "serious" if share >= FULL or ahead.soonest_s <= SOON_S else severity
        told += f", and all of it {when(ahead)} if it goes on growing as it does"
    evidence = (
        [*_evidence(ahead, used.values[-1], limit)]
        if ahead
        else [
            used.evidence("in use", used.values[-1], "MiB"),
            used.evidence("limit", limit, "MiB"),
        ]
    )
    own = host.of(_rss)
    if own.values:
        evidence.append(own.evidence("of it this process", own.values[-1], "MiB"))
    return Finding(
        "host_memory",
        severity,
        told + ".",
        tuple(evidence),
        "extrapolated by a straight line" if ahead else "measured",
        "cache on disk instead of in memory, shuffle among fewer examples, keep no batches in "
        "lists; a process that is over the limit is killed without a word",
        'tfopt.Pipeline(cache="file:/path")' if share >= NEARLY_FULL else None,
    )


def _rss(host: HostReading) -> float | None:
    return host.rss_mib


def _evidence(ahead: Ahead, used: float, limit: float) -> tuple[Evidence, ...]:
    times = (ahead.begun_s, ahead.ended_s)
    return (
        Evidence("in use", used, "MiB", *times),
        Evidence("limit", limit, "MiB", *times),
        Evidence("growth", 60 * ahead.a_second, "MiB a minute", *times),
    )


# Of all cores that the process may use.
BUSY_CPU_PERCENT = 90.0
# Of the time that was watched.
THROTTLED_SHARE = 0.05


def cpu_bound(recording: Recording) -> list[Finding]:
    """All cores busy while GPUs have time left; without GPUs that is what the CPU is for."""
    host = HostTrace(recording)
    cores, together = _cores(host)
    if not together.enough:
        return [host.lacks("cpu_bound", "cpu_percent", together.told)]
    busy = [(gpu, gpu.series("utilisation_percent")) for gpu in gpu_traces(recording)]
    waiting = [(gpu, each) for gpu, each in busy if each.enough and each.mean < BUSY_PERCENT]
    if together.mean < BUSY_CPU_PERCENT or (busy and not waiting):
        return []
    evidence = [together.evidence(cores, together.mean, "%")]
    evidence += [
        each.evidence(f"GPU {gpu.place} utilisation", each.mean, "%") for gpu, each in waiting
    ]
    if not busy:
        return [
            Finding(
                "cpu_bound",
                "hint",
                f"The CPU computes the training, and its cores are {together.mean:.0f} % busy.",
                tuple(evidence),
                "measured",
                "a GPU; on a CPU, fused operations and a smaller model help most",
                "tfopt.Execution(jit_compile=True)",
            )
        ]
    return [
        Finding(
            "cpu_bound",
            "warning",
            f"The cores are {together.mean:.0f} % busy while a GPU has time left.",
            tuple(evidence),
            "likely: what the cores are busy with is not told",
            "prepare the data once and cache it, decode less, or use more cores; look for other "
            "processes on this machine",
            'tfopt.Pipeline(cache="memory")',
        )
    ]


def _cores(host: HostTrace) -> tuple[str, Series]:
    """How busy what the process may use is: its quota in a container, else the machine's cores."""
    limit, total = host.series("cpu_limit_cores"), host.of(_core_count)
    if limit.values and total.values and limit.values[-1] < total.values[-1]:
        cores = limit.values[-1]
        own = host.of(
            lambda each: (
                None if each.process_cpu_percent is None else each.process_cpu_percent / cores
            )
        )
        if own.enough:
            return f"CPU of the process, of {cores:g} cores", own
    return "CPU, all cores", host.of(mean_of_cores)


def _core_count(host: HostReading) -> float | None:
    return None if host.cpu_percent is None else float(len(host.cpu_percent))


def cpu_held_back(recording: Recording) -> list[Finding]:
    """A container's quota stopped the process now and then, though cores were free."""
    host = HostTrace(recording)
    held = host.series("cpu_throttled_s")
    if not held.long_enough:
        return []  # without a quota there is nothing to count
    grown = sum(max(0.0, after - before) for before, after in pairwise(held.values))
    watched = held.times[-1] - held.times[0]
    if grown < THROTTLED_SHARE * watched:
        return []
    return [
        Finding(
            "cpu_held_back",
            "warning",
            f"The container's CPU quota held its tasks back for {grown:.0f} s "
            f"(of all cores together) in {watched:.0f} s.",
            (held.evidence("held back", grown, "s"),),
            "counted by the kernel",
            "raise the quota (docker --cpus, resources.limits.cpu), or use fewer threads: a "
            "quota stops all of them when it is spent",
        )
    ]
