"""Find memory that runs out: of a GPU, and of the host or its container.

The thresholds are tfopt's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tfopt.monitor.findings.finding import (
    Evidence,
    Finding,
    GpuTrace,
    HostTrace,
    Series,
    Severity,
    for_each,
    gpu_traces,
    not_judged,
)
from tfopt.monitor.readings import Recording

# Less than that is what an allocator takes now and then.
LEAST_GROWTH_MIB = 64.0
LEAST_GROWTH = 0.01
# Sooner than that, somebody should look now.
SOON_S = 1800.0
# TensorFlow takes nearly all memory at once, unless it is set to let it grow.
TAKEN_AT_ONCE = 0.85
# Of the host's memory; the kernel's out-of-memory killer and a container's come without warning.
NEARLY_FULL = 0.90
FULL = 0.97

# Slopes between all pairs are looked at.
_MOST_POINTS = 200
# A warm-up that ends within the first half is not looked at, one that goes on is.
_LOOKED_AT = 0.5
_PARTS = 3
LEAST_POINTS = 20
LEAST_TREND_SECONDS = 30.0
# A straight line that was watched for a minute says little about the hour after.
FURTHEST_AHEAD = 20.0


@for_each(gpu_traces)
def gpu_memory_ahead(gpu: GpuTrace) -> Finding | None:
    """Find memory in use on a GPU that grows steadily towards all there is."""
    rule = "gpu_memory_ahead"
    used, total = gpu.series("device_mib"), gpu.series("total_mib")
    own = gpu.series("process_mib")
    if not used.enough:
        return gpu.lacks(rule, "device_mib")
    if not total.values:
        return gpu.lacks(rule, "total_mib")
    limit = total.values[-1]
    why = None
    if own.enough and min(own.values) >= TAKEN_AT_ONCE * limit:
        why = (
            f"TensorFlow took {own.median:.0f} MiB at once; what it needs of it is not known "
            "(tfopt.Place(memory_growth=True) shows it)"
        )
    # Zero throughout comes from a driver that counts processes otherwise than the container.
    elif not (own.enough and max(own.values)) and min(used.values) >= TAKEN_AT_ONCE * limit:
        why = (
            f"{used.median:.0f} MiB are held throughout, by which process is not known: TensorFlow "
            "takes nearly all at once (tfopt.Place(memory_growth=True) shows what it needs)"
        )
    elif not _has_trend(used):
        why = f"a trend needs {LEAST_TREND_SECONDS:.0f} s of samples"
    if why is not None:
        return not_judged(rule, f"{gpu.label}: {why}", gpu.place)
    ahead = _reaches(used, limit)
    if ahead is None:
        return None
    return Finding(
        rule,
        "serious" if ahead.soonest_s <= SOON_S else "warning",
        f"{gpu.label} runs out of memory {ahead.when()} if its use goes on growing as it does.",
        ahead.evidence(used.values[-1], limit),
        "extrapolated by a straight line over the second half of the samples",
        "find what grows: inputs of ever new shapes, tensors kept in lists or callbacks, another "
        "process; smaller steps only put it off",
        "tfopt.Accumulate(steps=2)",
        gpu.place,
    )


def host_memory(recording: Recording) -> list[Finding]:
    """Find that the container's memory, or else the machine's, is nearly used up."""
    host = HostTrace(recording)
    name, whose = "memory_in_limit_mib", "the container's limit"
    limit = host.series("memory_limit_mib")
    if not limit.values:
        name, whose = "memory_used_mib", "the machine's memory"
        limit = host.series("memory_total_mib")
    used = host.series(name)
    if not used.enough or not limit.values:
        return [host.lacks("host_memory", name, used)]
    return [found] if (found := _host_memory(host, used, limit.values[-1], whose)) else []


def _host_memory(host: HostTrace, used: Series, limit: float, whose: str) -> Finding | None:
    share = used.values[-1] / limit
    ahead = _reaches(used, limit) if _has_trend(used) else None
    if share < NEARLY_FULL and ahead is None:
        return None
    soon = ahead is not None and ahead.soonest_s <= SOON_S
    severity: Severity = "serious" if share >= FULL or soon else "warning"
    message = f"{100 * share:.0f} % of {whose} ({limit:.0f} MiB) is in use"
    evidence: tuple[Evidence, ...] = (
        used.evidence("in use", used.values[-1], "MiB"),
        used.evidence("limit", limit, "MiB"),
    )
    if ahead is not None:
        message += f", and all of it {ahead.when()} if it goes on growing as it does"
        evidence = ahead.evidence(used.values[-1], limit)
    own = host.series("rss_mib")
    if own.values:
        evidence += (own.evidence("of it this process", own.values[-1], "MiB"),)
    return Finding(
        "host_memory",
        severity,
        message + ".",
        evidence,
        "extrapolated by a straight line" if ahead else "measured",
        "cache on disk instead of in memory, shuffle among fewer examples, keep no batches in "
        "lists; a process that is over the limit is killed without a word",
        'tfopt.Pipeline(cache="file:/path")' if share >= NEARLY_FULL else None,
    )


@dataclass(frozen=True)
class _Ahead:
    """When a limit would be reached if it goes on like this, in seconds from the last sample."""

    a_second: float
    soonest_s: float
    latest_s: float
    begun_s: float
    ended_s: float

    def when(self) -> str:
        """Return the time as people say it."""
        soonest, latest = _time(self.soonest_s), _time(self.latest_s)
        return f"in about {soonest}" if soonest == latest else f"in {soonest} to {latest}"

    def evidence(self, used: float, limit: float) -> tuple[Evidence, ...]:
        times = (self.begun_s, self.ended_s)
        return (
            Evidence("in use", used, "MiB", *times),
            Evidence("limit", limit, "MiB", *times),
            Evidence("growth", 60 * self.a_second, "MiB a minute", *times),
        )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _has_trend(series: Series) -> bool:
    """Return whether the series is long enough to judge a trend."""
    return (
        series.seconds >= LEAST_TREND_SECONDS and len(_second_half(series).values) >= LEAST_POINTS
    )


def _reaches(series: Series, limit: float) -> _Ahead | None:
    """Return when a series reaches its limit; None where it does not grow steadily towards it.

    By Theil and Sen's slope with its interval, which a few outliers do not bend. What grew at the
    start and has stopped, or grew in one jump, is no trend.
    """
    from scipy.stats import theilslopes

    later = _second_half(series)
    last = len(later.values) - 1
    bounds = [later.values[last * n // _PARTS] for n in range(_PARTS + 1)]
    if any(after <= before for before, after in pairwise(bounds)):
        return None
    if later.values[-1] - later.values[0] < max(LEAST_GROWTH_MIB, LEAST_GROWTH * limit):
        return None
    step = max(1, len(later.values) // _MOST_POINTS)
    slope, _, low, high = theilslopes(later.values[::step], later.times[::step])
    if low <= 0:
        return None
    room = max(0.0, limit - later.values[-1])
    if room / slope > FURTHEST_AHEAD * series.seconds:
        return None
    times = (later.times[0], later.times[-1])
    return _Ahead(float(slope), room / float(high), room / float(low), *times)


def _second_half(series: Series) -> Series:
    if not series.times:
        return series
    begin = series.times[-1] - _LOOKED_AT * series.seconds
    first = next(n for n, at in enumerate(series.times) if at >= begin)
    return Series(series.times[first:], series.values[first:], series.asked)
