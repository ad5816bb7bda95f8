"""Read the host memory available to this process, and refuse copies that would not fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from tfopt.errors import UserError
from tfopt.job.cgroup import memory_limits

MIB = 1024**2
USABLE_SHARE = 0.8  # of the free memory, for a copy of the data; the model and its step need some


@dataclass(frozen=True)
class Memory:
    """Available bytes, and what limits them."""

    available_bytes: int
    limited_by: str


def available_memory(root: Path = Path("/")) -> Memory:
    """Return the memory available by the machine and the readable limits of control groups."""
    machine = Memory(psutil.virtual_memory().available, "the machine's free memory")
    groups = (
        Memory(max(limit.size - limit.used, 0), f"the limit of control group {limit.group}")
        for limit in memory_limits(root)
        if limit.used is not None
    )
    return min([machine, *groups], key=lambda memory: memory.available_bytes)


def require_fits(size_bytes: int, *, what: str, detail: str, fix: str) -> None:
    """Refuse a copy that is larger than the usable memory."""
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
