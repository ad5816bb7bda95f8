"""The machine and one process on it, asked again and again.

Guarantees: a reading never raises; what the system or a container does not tell is None, with the
reason in ``missing``. Rates are means since the value before, so the first reading has none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psutil

from tfopt.monitor import cgroup
from tfopt.monitor.asking import Asking, NotYet, Rate, Shared, Trouble
from tfopt.monitor.readings import HostReading


class WatchedHost:
    """The host as a process sees it; ``missing`` grows as it refuses some metrics."""

    def __init__(self, process_id: int, clock: Callable[[], float]) -> None:
        self.missing: dict[str, str] = {}
        self._clock = clock
        self._asking = Asking(_questions(process_id, clock), self.missing, _explain)

    def read(self) -> HostReading:
        """Everything that the host tells now."""
        return HostReading(**self._asking.answers(self._clock()))


def _questions(process_id: int, clock: Callable[[], float]) -> dict[str, Callable[[], Any]]:
    process = _Process(process_id)
    cores = _BusyCores()
    own = Rate(process.cpu_s, clock)

    memory = Shared(psutil.virtual_memory)
    disks = Shared(_disks)
    networks = Shared(_networks)

    return {
        "cpu_percent": cores.busy,
        "process_cpu_percent": own,
        "rss_mib": process.resident,
        "memory_used_mib": lambda: (told := memory.new()).total - told.available,
        "memory_total_mib": lambda: memory.last().total,
        "memory_limit_mib": lambda: _limited(cgroup.memory_limit(process=process_id)),
        "memory_in_limit_mib": lambda: _limited(cgroup.memory_in_limit(process=process_id)),
        "cpu_limit_cores": lambda: _cores(process_id),
        "cpu_throttled_s": lambda: _limited(cgroup.throttled_s(process=process_id)),
        "disk_read_mib_per_s": Rate(lambda: disks.new().read_bytes, clock),
        "disk_write_mib_per_s": Rate(lambda: disks.last().write_bytes, clock),
        "network_received_mib_per_s": Rate(lambda: networks.new()[0], clock),
        "network_sent_mib_per_s": Rate(lambda: networks.last()[1], clock),
    }


class _Process:
    """The watched process; one that is gone, or never was, tells nothing."""

    def __init__(self, process_id: int) -> None:
        self._id = process_id
        self._process: psutil.Process | None = None

    def resident(self) -> int:
        return int(self._found().memory_info().rss)

    def cpu_s(self) -> float:
        times = self._found().cpu_times()
        return float(times.user + times.system)

    def _found(self) -> Any:
        if self._process is None:
            self._process = psutil.Process(self._id)
        return self._process


class _BusyCores:
    """Of each core the share of time in which it was not idle, since the call before."""

    def __init__(self) -> None:
        self._before: list[tuple[float, float]] = []

    def busy(self) -> tuple[float, ...]:
        now = [_busy_and_all(core) for core in psutil.cpu_times(percpu=True)]
        before, self._before = self._before, now
        if len(before) != len(now):
            raise NotYet("a share of time needs two readings")
        spent = [(b1 - b0, a1 - a0) for (b0, a0), (b1, a1) in zip(before, now, strict=True)]
        if any(passed <= 0 for _, passed in spent):
            raise NotYet("asked again before the system counted on")
        return tuple(min(max(busy / passed, 0.0), 1.0) for busy, passed in spent)


def _busy_and_all(core: Any) -> tuple[float, float]:
    # A guest's time is within the user's; waiting for a disk is idle.
    total = sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0)
    return total - core.idle - getattr(core, "iowait", 0.0), total


def _disks() -> Any:
    told = psutil.disk_io_counters(nowrap=False)
    if told is None:
        raise UntoldError("the system lists no disks")
    return told


def _networks() -> tuple[int, int]:
    """Received and sent, over all cards but loopback."""
    told = psutil.net_io_counters(pernic=True, nowrap=False)
    cards = [counts for card, counts in told.items() if card != "lo"]
    return sum(card.bytes_recv for card in cards), sum(card.bytes_sent for card in cards)


def _limited(value: float | None) -> float:
    if value is None:
        raise NotYet("no control group limits this process")
    return value


def _cores(process_id: int) -> float:
    if hasattr(os, "sched_getaffinity"):
        allowed = float(len(os.sched_getaffinity(process_id)))
    else:
        allowed = float(os.cpu_count() or 1)
    quota = cgroup.cpu_quota(process=process_id)
    return allowed if quota is None else min(allowed, quota)


class UntoldError(Exception):
    """The system does not tell; the text says why."""


def _explain(error: Exception) -> tuple[str, Trouble]:
    if isinstance(error, NotYet):
        return str(error), Trouble.NOT_NOW
    if isinstance(error, OSError):
        return f"the system: {error.strerror or error}", Trouble.NOT_NOW
    return f"the system: {error}", Trouble.NEVER
