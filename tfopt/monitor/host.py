"""The machine and one process on it, asked again and again.

Guarantees: a reading never raises; what the system or a container does not tell is None, with the
reason in ``missing``. Rates are means since the value before, so the first reading has none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tfopt.monitor.asking import Asking, NotYet, Rate, Shared, Trouble
from tfopt.monitor.readings import HostReading

# What a control group (a container, a batch system) allows a process and counts of it (v1, v2).
#
# Guarantees: reads files only; a limit that cannot be read counts as none; the narrowest limit on
# the way from the process's group up to the root is the one told.

# Version 1 writes "no limit" as the largest number of whole pages.
_NO_LIMIT = 2**60


def cpu_quota(root: Path = Path("/"), process: int | str = "self") -> float | None:
    """Cores that the group may use; None without a limit."""
    quotas = [_quota(group) for group in groups(root, "cpu", process)]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path = Path("/"), process: int | str = "self") -> int | None:
    """Bytes that the group may use; None without a limit."""
    limit = _limiting(root, process)
    return None if limit is None else limit[0]


def memory_in_limit(root: Path = Path("/"), process: int | str = "self") -> int | None:
    """Bytes that count against that limit, less file pages that the kernel can give back at once.

    The limit counts those too, but nothing is killed for them: they go first.
    """
    limit = _limiting(root, process)
    if limit is None:
        return None
    group = limit[1]
    used = number(read(group / "memory.current") or read(group / "memory.usage_in_bytes"))
    if used is None:
        return None
    stat = _pairs(group / "memory.stat")
    return max(0, used - stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def throttled_s(root: Path = Path("/"), process: int | str = "self") -> float | None:
    """For how long the group's tasks have waited for the quota; None where no quota is counted."""
    for group in groups(root, "cpu", process):
        stat = _pairs(group / "cpu.stat")
        if _quota(group) is not None and "throttled_usec" in stat:
            return stat["throttled_usec"] / 1e6
        if _quota(group) is not None and "throttled_time" in stat:
            return stat["throttled_time"] / 1e9
    return None


def groups(root: Path, controller: str, process: int | str = "self") -> Iterator[Path]:
    """The folders of the process's group and of those around it."""
    mounted = root / "sys/fs/cgroup"
    for line in read(root / f"proc/{process}/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if names == "":
            tops = [mounted, mounted / "unified"]
        elif controller in names.split(","):
            tops = [mounted / names, mounted / controller]
        else:
            continue
        for top in tops:
            # Inside a container the group may be named as the host sees it, which is not here:
            # its parents end at the top, which is then the container's own group.
            inside = top / group.lstrip("/")
            yield from (each for each in (inside, *inside.parents) if each.is_relative_to(top))


def number(text: str) -> int | None:
    """The number that a file holds; None for words such as ``max``."""
    try:
        return int(text)
    except ValueError:
        return None


def read(path: Path) -> str:
    """A file's text; empty where it is not there or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _limiting(root: Path, process: int | str) -> tuple[int, Path] | None:
    """The narrowest memory limit, and the group that has it."""
    sizes = [(size, group) for group in groups(root, "memory", process) if (size := _bytes(group))]
    return min(sizes, key=lambda each: each[0], default=None)


def _quota(group: Path) -> float | None:
    """Cores: of version 2 a pair in one file, of version 1 two files."""
    words = read(group / "cpu.max").split()
    words = words or read(group / "cpu.cfs_quota_us").split()
    if len(words) == 1:
        words += read(group / "cpu.cfs_period_us").split()
    quota, period = (number(word) for word in words) if len(words) == 2 else (None, None)
    return quota / period if quota and period and quota > 0 else None


def _bytes(group: Path) -> int | None:
    size = number(read(group / "memory.max") or read(group / "memory.limit_in_bytes"))
    return size if size is not None and 0 < size < _NO_LIMIT else None


def _pairs(path: Path) -> dict[str, int]:
    """A file of lines that are a name and a whole number."""
    pairs = (line.split() for line in read(path).splitlines())
    return {
        pair[0]: value
        for pair in pairs
        if len(pair) == 2 and (value := number(pair[1])) is not None
    }


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
        "memory_limit_mib": lambda: _limited(memory_limit(process=process_id)),
        "memory_in_limit_mib": lambda: _limited(memory_in_limit(process=process_id)),
        "cpu_limit_cores": lambda: _cores(process_id),
        "cpu_throttled_s": lambda: _limited(throttled_s(process=process_id)),
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
    quota = cpu_quota(process=process_id)
    return allowed if quota is None else min(allowed, quota)


class UntoldError(Exception):
    """The system does not tell; the text says why."""


def _explain(error: Exception) -> tuple[str, Trouble]:
    if isinstance(error, NotYet):
        return str(error), Trouble.NOT_NOW
    if isinstance(error, OSError):
        return f"the system: {error.strerror or error}", Trouble.NOT_NOW
    return f"the system: {error}", Trouble.NEVER
