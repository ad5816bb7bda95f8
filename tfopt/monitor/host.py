"""Poll the machine and one process on it: processors, memory, disks, network."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import psutil

from tfopt.job.cgroup import MemoryLimit, cpu_quota, memory_limits, throttled_s
from tfopt.job.cluster_place import allowed_cores
from tfopt.monitor.polling import NotYet, Poller, Question, Rate, Shared
from tfopt.monitor.readings import HostReading

_MIB = 1024**2
_OF_A_PROCESS = ("process_cpu_percent", "rss_mib")
T = TypeVar("T")


class WatchedHost:
    """Read the host as a process sees it; ``missing`` says why a metric is None."""

    def __init__(self, process_id: int | None, clock: Callable[[], float]) -> None:
        self.missing: dict[str, str] = {}
        self._clock = clock
        questions = _questions(os.getpid() if process_id is None else process_id, clock)
        if process_id is None:
            for name in _OF_A_PROCESS:
                del questions[name]
                self.missing[name] = "no process is watched"
        self._poller = Poller(questions, self.missing, _explain)

    def read(self) -> HostReading:
        """Return a reading of now; it never raises."""
        return HostReading(**self._poller.values(self._clock()))


def _questions(process_id: int, clock: Callable[[], float]) -> dict[str, Question]:
    memory = Shared(psutil.virtual_memory)
    disks = Shared(_disks)
    networks = Shared(_networks)

    def cpu_percent_s() -> float:
        times = psutil.Process(process_id).cpu_times()
        return 100 * float(times.user + times.system)

    return {
        "cpu_percent": _BusyCores(),
        "process_cpu_percent": Rate(cpu_percent_s, clock),
        "rss_mib": lambda: psutil.Process(process_id).memory_info().rss / _MIB,
        "memory_used_mib": lambda: ((now := memory.new()).total - now.available) / _MIB,
        "memory_total_mib": lambda: memory.last().total / _MIB,
        "memory_limit_mib": lambda: _memory(process_id).size / _MIB,
        "memory_in_limit_mib": lambda: _limited(_memory(process_id).used) / _MIB,
        "cpu_limit_cores": lambda: _cores(process_id),
        "cpu_throttled_s": lambda: _limited(throttled_s(process=process_id)),
        "disk_read_mib_per_s": Rate(lambda: disks.new().read_bytes / _MIB, clock),
        "disk_write_mib_per_s": Rate(lambda: disks.last().write_bytes / _MIB, clock),
        "network_received_mib_per_s": Rate(lambda: networks.new()[0] / _MIB, clock),
        "network_sent_mib_per_s": Rate(lambda: networks.last()[1] / _MIB, clock),
    }


class _BusyCores:
    """Return for each core the percentage of time in which it was not idle, since the last call."""

    def __init__(self) -> None:
        self._before: list[tuple[float, float]] = []

    def __call__(self) -> tuple[float, ...]:
        # psutil.cpu_percent remembers the last reading of each thread, and says 0 in a new one.
        now = [_busy_and_all(core) for core in psutil.cpu_times(percpu=True)]
        before, self._before = self._before, now
        if len(before) != len(now):
            raise NotYet("a share of time needs two readings")
        spent = [(b1 - b0, a1 - a0) for (b0, a0), (b1, a1) in zip(before, now, strict=True)]
        if any(passed <= 0 for _, passed in spent):
            raise NotYet("asked again before the system counted on")
        return tuple(100 * min(max(busy / passed, 0.0), 1.0) for busy, passed in spent)


def _busy_and_all(core: Any) -> tuple[float, float]:
    # A guest's time is within the user's; waiting for a disk is idle.
    total = sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0)
    return total - core.idle - getattr(core, "iowait", 0.0), total


def _disks() -> Any:
    counters = psutil.disk_io_counters(nowrap=False)
    if counters is None:
        raise LookupError("the system lists no disks")
    return counters


def _networks() -> tuple[int, int]:
    """Return the bytes received and sent, over all cards but loopback."""
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    cards = [counts for card, counts in counters.items() if card != "lo"]
    return sum(card.bytes_recv for card in cards), sum(card.bytes_sent for card in cards)


def _memory(process_id: int) -> MemoryLimit:
    return _limited(next(iter(memory_limits(process=process_id)), None))


def _limited(value: T | None) -> T:
    if value is None:
        raise NotYet("no control group limits this process")
    return value


def _cores(process_id: int) -> float:
    return min(float(allowed_cores(process_id)), cpu_quota(process=process_id) or math.inf)


def _explain(error: Exception) -> tuple[str, bool]:
    """Return why, and whether it is so for good."""
    if isinstance(error, NotYet):
        return str(error), False
    told = error.strerror or error if isinstance(error, OSError) else error
    return f"the system: {told}", not isinstance(error, OSError)
