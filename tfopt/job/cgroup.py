"""Read the cores and the memory that a process may use, from its affinity and its control groups.

Control groups (of containers, batch systems) are of version 1 or 2; the process's own group and all
its parents count. A limit that cannot be read counts as none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tfopt.files import text_of

# Version 1 writes "no limit" as the largest number of whole pages.
_NO_LIMIT = 2**60


def allowed_cores(process_id: int = 0) -> int:
    """Return the cores in a process's affinity (0: this process); without affinity, all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(process_id))
    return os.cpu_count() or 1


def cpu_flags() -> str:
    """Return the line of /proc/cpuinfo with the instruction sets of the CPU; "" without it."""
    lines = text_of(Path("/proc/cpuinfo")).splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def usable_cores() -> int:
    """Return the number of cores that this process may use, by affinity and quota."""
    return max(int(min(allowed_cores(), cpu_quota() or math.inf)), 1)


def cpu_quota(root: Path = Path("/"), process: int | str = "self") -> float | None:
    """Return the lowest quota of the groups, in cores; None without one."""
    quotas = [_quota(group) for group in _groups(root, "cpu", process)]
    return min((quota for quota in quotas if quota is not None), default=None)


class MemoryLimit(NamedTuple):
    """The bytes that a group may use and those in use; None if that cannot be read."""

    size: int
    used: int | None
    group: Path


def memory_limit_gib(root: Path = Path("/")) -> float | None:
    """Return the lowest limit of the groups; None without one."""
    limits = memory_limits(root)
    return round(limits[0].size / 1024**3, 3) if limits else None


def memory_limits(root: Path = Path("/"), process: int | str = "self") -> list[MemoryLimit]:
    """Return the limits of the groups that have one, the lowest first.

    Inactive file pages do not count as in use: the kernel reclaims them before it kills a process.
    """
    limits = []
    for group in _groups(root, "memory", process):
        size = _number(text_of(group / "memory.max") or text_of(group / "memory.limit_in_bytes"))
        if size is None or not 0 < size < _NO_LIMIT:
            continue
        used = _number(
            text_of(group / "memory.current") or text_of(group / "memory.usage_in_bytes")
        )
        if used is not None:
            stat = _pairs(group / "memory.stat")
            used -= min(used, stat.get("total_inactive_file", stat.get("inactive_file", 0)))
        limits.append(MemoryLimit(size, used, group))
    return sorted(limits, key=lambda limit: limit.size)


def _groups(root: Path, controller: str, process: int | str) -> Iterator[Path]:
    """Yield the folders of the process's group and of its parents."""
    mounted = root / "sys/fs/cgroup"
    for line in text_of(root / f"proc/{process}/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if names == "":
            tops = [mounted, mounted / "unified"]
        elif controller in names.split(","):
            tops = [mounted / names, mounted / controller]
        else:
            continue
        for top in tops:
            # In a container the path may be the host's, which does not exist here: its parents end
            # at the top, which is then the container's own group.
            inside = top / group.lstrip("/")
            yield from (
                folder for folder in (inside, *inside.parents) if folder.is_relative_to(top)
            )


def _quota(group: Path) -> float | None:
    """Return the quota in cores: from ``cpu.max`` of version 2, or from two files of version 1."""
    words = text_of(group / "cpu.max").split() or text_of(group / "cpu.cfs_quota_us").split()
    if len(words) == 1:
        words += text_of(group / "cpu.cfs_period_us").split()
    quota, period = (_number(word) for word in words) if len(words) == 2 else (None, None)
    return quota / period if quota and period and quota > 0 else None


def _number(text: str) -> int | None:
    """Return the number in a file; None for words such as ``max``."""
    try:
        return int(text)
    except ValueError:
        return None


def _pairs(path: Path) -> dict[str, int]:
    """Return a file whose lines are a name and an integer."""
    pairs = (line.split() for line in text_of(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
