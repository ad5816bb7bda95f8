"""Read the machine and one process: processors, memory, disks, network."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import psutil

from tfopt.data.host_memory import MIB
from tfopt.job.cgroup import allowed_cores, cpu_quota, memory_limits
from tfopt.monitor.polling import NotYet, Poller, Question, Rate


def host_poller(process_id: int | None, clock: Callable[[], float]) -> Poller:
    """Return what reads the metrics of a ``HostReading``."""
    return Poller(_questions(process_id, clock), _why)


def _questions(watched: int | None, clock: Callable[[], float]) -> dict[str, Question]:
    process_id = os.getpid() if watched is None else watched
    cores, busy = psutil.cpu_count() or 1, Rate(_busy_s, clock)
    memory = psutil.virtual_memory

    def process() -> psutil.Process:
        if watched is None:
            raise NotYet("no process is watched")
        return psutil.Process(watched)

    return {
        "cpu_percent": lambda: min(100 * busy() / cores, 100.0),
        "process_cpu_percent": Rate(lambda: 100 * sum(process().cpu_times()[:2]), clock),
        "rss_mib": lambda: process().memory_info().rss / MIB,
        "memory_used_mib": lambda: ((now := memory()).total - now.available) / MIB,
        "memory_total_mib": lambda: memory().total / MIB,
        "memory_limit_mib": lambda: _group_mib(process_id, "size"),
        "memory_in_limit_mib": lambda: _group_mib(process_id, "used"),
        "cpu_limit_cores": lambda: min(
            float(allowed_cores(process_id)), cpu_quota(process=process_id) or math.inf
        ),
        "disk_read_mib_per_s": Rate(lambda: _disks().read_bytes / MIB, clock),
        "disk_write_mib_per_s": Rate(lambda: _disks().write_bytes / MIB, clock),
        "network_received_mib_per_s": Rate(lambda: _network("bytes_recv") / MIB, clock),
        "network_sent_mib_per_s": Rate(lambda: _network("bytes_sent") / MIB, clock),
    }


def _busy_s() -> float:
    """Return the busy seconds of all cores."""
    # psutil.cpu_percent keeps the last reading of each thread, and is 0 in a new one. A guest's
    # time is part of the user's; waiting for a disk is idle.
    times = psutil.cpu_times()._asdict()
    idle = ("idle", "iowait", "guest", "guest_nice")
    return float(sum(seconds for name, seconds in times.items() if name not in idle))


def _disks() -> Any:
    counters = psutil.disk_io_counters(nowrap=False)
    if counters is None:
        raise LookupError("the system lists no disks")
    return counters


def _network(way: str) -> int:
    """Return the bytes received or sent by all interfaces but loopback."""
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return sum(getattr(counts, way) for card, counts in counters.items() if card != "lo")


def _group_mib(process_id: int, name: str) -> float:
    """Return the size or the use of the memory of the narrowest control group."""
    limits = memory_limits(process=process_id)
    known = getattr(limits[0], name) if limits else None
    if known is None:
        raise NotYet("no control group limits this process")
    return float(known / MIB)


def _why(error: Exception) -> str:
    if isinstance(error, NotYet):
        return str(error)
    reason = error.strerror or error if isinstance(error, OSError) else error
    return f"the system: {reason}"
