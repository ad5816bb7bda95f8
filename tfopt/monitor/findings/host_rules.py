"""Find what the host or its container lacks: memory, and time on its processors.

The thresholds are tfopt's own.
"""

from __future__ import annotations

from tfopt.monitor.findings.finding import Evidence, Finding, Trace
from tfopt.monitor.readings import Recording

# Of the memory; the kernel's out-of-memory killer and a container's come without warning.
NEARLY_FULL = 0.90
FULL = 0.97
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
    share = used.values[-1] / limit
    if share < NEARLY_FULL:
        return []
    evidence = [
        Evidence("in use", used.values[-1], "MiB"),
        Evidence("limit", limit, "MiB"),
    ]
    own = host.series("rss_mib").values
    if own:
        evidence.append(Evidence("of it this process", own[-1], "MiB"))
    return [
        Finding(
            "host_memory",
            "serious" if share >= FULL else "warning",
            f"{100 * share:.0f} % of {whose} ({limit:.0f} MiB) is in use.",
            tuple(evidence),
            "measured",
            "cache on disk instead of in memory, shuffle among fewer examples, keep no batches in "
            "lists; a process that is over the limit is killed without a word",
            'tfopt.Pipeline(cache="file:/path")',
        )
    ]


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
