"""Find what the host or its container lacks: memory, and processors.

The thresholds are tfopt's own.
"""

from __future__ import annotations

from itertools import pairwise

from tfopt.monitor.findings.bottleneck_rules import BUSY_PERCENT
from tfopt.monitor.findings.finding import (
    Evidence,
    Finding,
    Series,
    Trace,
    gpu_traces,
    mean_of_cores,
)
from tfopt.monitor.readings import HostReading, Recording

# Of the memory; the kernel's out-of-memory killer and a container's come without warning.
NEARLY_FULL = 0.90
FULL = 0.97
# Sooner than that, somebody should look now.
SOON_S = 1800.0
# Less than that, or less of all there is, is what an allocator takes now and then.
LEAST_GROWTH_MIB = 64.0
LEAST_GROWTH = 0.01
# A warm-up that ends within the first half is not looked at, one that goes on is.
_LOOKED_AT = 0.5
_PARTS = 3
LEAST_POINTS = 20
LEAST_TREND_SECONDS = 30.0
# Slopes between all pairs are looked at.
_MOST_POINTS = 200
# A straight line that was watched for a minute says little about the hour after.
FURTHEST_AHEAD = 20.0
# Of all cores that the process may use.
BUSY_CPU_PERCENT = 90.0
# Of the time that was watched.
THROTTLED_SHARE = 0.05


def host_memory(recording: Recording) -> list[Finding]:
    """Find that the container's memory, or else the machine's, is nearly used up."""
    host = Trace(recording)
    name, whose = "memory_in_limit_mib", "the container's limit"
    limits = host.series("memory_limit_mib").values
    if not limits:
        name, whose = "memory_used_mib", "the machine's memory"
        limits = host.series("memory_total_mib").values
    used = host.series(name)
    if not used.enough or not limits:
        return [host.lacks("host_memory", name)]
    limit = limits[-1]
    share, full_in_s = used.values[-1] / limit, _full_in_s(used, limit)
    if share < NEARLY_FULL and full_in_s is None:
        return []
    soon = full_in_s is not None and full_in_s <= SOON_S
    message = f"{100 * share:.0f} % of {whose} ({limit:.0f} MiB) is in use"
    if full_in_s is not None:
        message += f", and all of it in about {_time(full_in_s)} if it goes on growing as it does"
    evidence = [
        Evidence("in use", used.values[-1], "MiB"),
        Evidence("limit", limit, "MiB"),
        Evidence("grown by", used.values[-1] - used.values[0], "MiB"),
    ]
    own = host.series("rss_mib").values
    if own:
        evidence.append(Evidence("of it this process", own[-1], "MiB"))
    return [
        Finding(
            "host_memory",
            "serious" if share >= FULL or soon else "warning",
            message + ".",
            tuple(evidence),
            "measured" if full_in_s is None else "extrapolated by a straight line",
            "cache on disk instead of in memory, shuffle among fewer examples, keep no batches in "
            "lists; a process that is over the limit is killed without a word",
            'tfopt.Pipeline(cache="file:/path")' if share >= NEARLY_FULL else None,
        )
    ]


def _full_in_s(series: Series, limit: float) -> float | None:
    """Return when a series reaches its limit; None where it does not grow steadily towards it.

    By Theil and Sen's slope over the second half, which a few outliers do not bend. What grew at
    the start and has stopped, or grew in one jump, is no trend.
    """
    from scipy.stats import theilslopes

    begin = series.times[-1] - _LOOKED_AT * series.seconds
    times, values = zip(
        *((at, v) for at, v in zip(series.times, series.values, strict=True) if at >= begin),
        strict=True,
    )
    last = len(values) - 1
    bounds = [values[last * n // _PARTS] for n in range(_PARTS + 1)]
    if (
        series.seconds < LEAST_TREND_SECONDS
        or len(values) < LEAST_POINTS
        or any(after <= before for before, after in pairwise(bounds))
        or values[-1] - values[0] < max(LEAST_GROWTH_MIB, LEAST_GROWTH * limit)
    ):
        return None
    step = max(1, len(values) // _MOST_POINTS)
    slope, _, lowest, _ = theilslopes(values[::step], times[::step])
    full_in_s = max(0.0, limit - values[-1]) / slope if lowest > 0 else None
    if full_in_s is None or full_in_s > FURTHEST_AHEAD * series.seconds:
        return None
    return float(full_in_s)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def cpu_bound(recording: Recording) -> list[Finding]:
    """Find all cores busy while GPUs have time left, or where there are no GPUs."""
    host = Trace(recording)
    cores, together = _cores(host)
    if not together.enough:
        return [host.lacks("cpu_bound", "cpu_percent")]
    busy = [(gpu, gpu.series("utilisation_percent")) for gpu in gpu_traces(recording)]
    waiting = [(gpu, each) for gpu, each in busy if each.enough and each.mean < BUSY_PERCENT]
    if together.mean < BUSY_CPU_PERCENT or (busy and not waiting):
        return []
    evidence = (
        Evidence(cores, together.mean, "%"),
        *(Evidence(f"GPU {gpu.place} utilisation", each.mean, "%") for gpu, each in waiting),
    )
    if not busy:
        return [
            Finding(
                "cpu_bound",
                "hint",
                f"The CPU computes the training, and its cores are {together.mean:.0f} % busy.",
                evidence,
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
            evidence,
            "likely: what the cores are busy with is not known",
            "prepare the data once and cache it, decode less, or use more cores; look for other "
            "processes on this machine",
            'tfopt.Pipeline(cache="memory")',
        )
    ]


def _cores(host: Trace) -> tuple[str, Series]:
    """Return how busy the cores are that the process may use: a container's quota, or all."""
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
    """Find that a container's quota stopped the process now and then, though cores were free."""
    held = Trace(recording).series("cpu_throttled_s")
    if not held.enough:
        return []  # without a quota there is nothing to count
    grown = held.values[-1] - held.values[0]
    if grown < THROTTLED_SHARE * held.seconds:
        return []
    return [
        Finding(
            "cpu_held_back",
            "warning",
            f"The container's CPU quota held its tasks back for {grown:.0f} s "
            f"(of all cores together) in {held.seconds:.0f} s.",
            (Evidence("held back", grown, "s"),),
            "counted by the kernel",
            "raise the quota (docker --cpus, resources.limits.cpu), or use fewer threads: a "
            "quota stops all of them when it is spent",
        )
    ]
