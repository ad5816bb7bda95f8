"""Read how much host memory is left to this process, and refuse what would not fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from tfopt.errors import UserError
from tfopt.job.cgroup import memory_limits

MIB = 1024**2
# What a held copy may take of the memory that is free now: the model and its step need some too.
USABLE_SHARE = 0.8


@dataclass(frozen=True)
class Memory:
    """Bytes that can still be taken, and what limits them."""

    available_bytes: int
    limited_by: str


def available_memory(root: Path = Path("/")) -> Memory:
    """Return the memory this process can still take, by the machine and its control groups.

    A limit that cannot be read is taken as no limit.
    """
    machine = Memory(psutil.virtual_memory().available, "the machine's free memory")
    groups = (
        Memory(max(each.size - each.used, 0), f"the limit of control group {each.group}")
        for each in memory_limits(root)
        if each.used is not None
    )
    return min([machine, *groups], key=lambda memory: memory.available_bytes)


def require_fits(size_bytes: int, *, what: str, detail: str, fix: str) -> None:
    """Refuse what would not fit beside everything else."""
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
