"""What a control group (a container, a batch system) allows a process and counts of it (v1, v2).

Guarantees: reads files only; a limit that cannot be read counts as none; the narrowest limit on
the way from the process's group up to the root is the one told.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
