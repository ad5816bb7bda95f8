"""Find what the host's processors hold up: all cores busy, or held back by a container's quota.

The thresholds are tfopt's own.
"""

from __future__ import annotations

from itertools import pairwise

from tfopt.monitor.findings.bottleneck_rules import BUSY_PERCENT
from tfopt.monitor.findings.finding import Finding, HostTrace, Series, gpu_traces, mean_of_cores
from tfopt.monitor.readings import HostReading, Recording

# Of all cores that the process may use.
BUSY_CPU_PERCENT = 90.0
# Of the time that was watched.
THROTTLED_SHARE = 0.05


def cpu_bound(recording: Recording) -> list[Finding]:
    """Find all cores busy while GPUs have time left, or where there are no GPUs."""
    host = HostTrace(recording)
    cores, together = _cores(host)
    if not together.enough:
        return [host.lacks("cpu_bound", "cpu_percent", together)]
    busy = [(gpu, gpu.series("utilisation_percent")) for gpu in gpu_traces(recording)]
    waiting = [(gpu, each) for gpu, each in busy if each.enough and each.mean < BUSY_PERCENT]
    if together.mean < BUSY_CPU_PERCENT or (busy and not waiting):
        return []
    evidence = (
        together.evidence(cores, together.mean, "%"),
        *(each.evidence(f"GPU {gpu.place} utilisation", each.mean, "%") for gpu, each in waiting),
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


def _cores(host: HostTrace) -> tuple[str, Series]:
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
    held = HostTrace(recording).series("cpu_throttled_s")
    if not held.long_enough:
        return []  # without a quota there is nothing to count
    grown = sum(max(0.0, after - before) for before, after in pairwise(held.values))
    if grown < THROTTLED_SHARE * held.seconds:
        return []
    return [
        Finding(
            "cpu_held_back",
            "warning",
            f"The container's CPU quota held its tasks back for {grown:.0f} s "
            f"(of all cores together) in {held.seconds:.0f} s.",
            (held.evidence("held back", grown, "s"),),
            "counted by the kernel",
            "raise the quota (docker --cpus, resources.limits.cpu), or use fewer threads: a "
            "quota stops all of them when it is spent",
        )
    ]
