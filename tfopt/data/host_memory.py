"""Read how much host memory is left to this process, and refuse what would not fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfopt.errors import UserError

MIB = 1024**2
# What a held copy may take of the memory that is free now: the model and its step need some too.
USABLE_SHARE = 0.8
# Version 1 has no word for "no limit" but a number near 2**63.
_NO_LIMIT = 1 << 60
# The files of a control group, by its version: limit, use, and what of the use gives way.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True)
class Memory:
    """Bytes that can still be taken, and what limits them."""

    available_bytes: int
    limited_by: str


def available_memory(
    *, proc: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")
) -> Memory:
    """Return the memory this process can still take, by the machine and its control groups.

    A limit that cannot be read is taken as no limit.
    """
    machine = Memory(psutil.virtual_memory().available, "the machine's free memory")
    return min([machine, *_cgroups(proc, mounts)], key=lambda memory: memory.available_bytes)


def require_fits(size_bytes: int, *, what: str, detail: str, fix: str) -> Memory:
    """Refuse what would not fit beside everything else; return the memory it looked at."""
    memory = available_memory()
    usable = int(memory.available_bytes * USABLE_SHARE)
    if size_bytes > usable:
        raise UserError(
            f"{what} does not fit in memory.",
            expected=f"at most {usable / MIB:,.0f} MiB, which is {USABLE_SHARE:.0%} of the "
            f"{memory.available_bytes / MIB:,.0f} MiB left by {memory.limited_by}",
            received=f"{size_bytes / MIB:,.0f} MiB ({detail})",
            fix=fix,
        )
    return memory


def _cgroups(proc: Path, mounts: Path) -> Iterator[Memory]:
    try:
        lines = proc.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            # Version 2 alone, or beside version 1 under "unified".
            for root in (mounts, mounts / "unified"):
                yield from _limits(root, group, *_V2)
        elif "memory" in controllers.split(","):
            yield from _limits(mounts / "memory", group, *_V1)


def _limits(root: Path, group: str, most: str, used: str, reclaimable: str) -> Iterator[Memory]:
    """Yield the limits of a group and of all above it.

    Inside a container the group's path may be the host's, where only the root is visible.
    """
    folder = root / group.strip("/")
    for each in (folder, *folder.parents):
        if each != root and root not in each.parents:
            break
        limit, taken = _number(each / most), _number(each / used)
        if limit is None or taken is None or limit >= _NO_LIMIT:
            continue
        # The page cache counts as used but gives way.
        held = taken - min(_stat(each / "memory.stat", reclaimable), taken)
        yield Memory(max(limit - held, 0), f"the limit of control group {each}")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _stat(path: Path, name: str) -> int:
    try:
        rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        return next((int(row[1]) for row in rows if row[:1] == [name]), 0)
    except (OSError, ValueError, IndexError):
        return 0
