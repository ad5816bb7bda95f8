"""Memory that runs out: of a GPU, and of the host or its container.

The thresholds are tfopt's own.
"""

from __future__ import annotations

from tfopt.monitor.findings.finding import Evidence, Finding, Severity, not_judged
from tfopt.monitor.findings.traces import GpuTrace, HostTrace, Series, gpu_traces
from tfopt.monitor.findings.trend import LEAST_TREND_SECONDS, Ahead, long_enough, reaches, when
from tfopt.monitor.readings import HostReading, Recording

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
