"""What is looked at while a trial runs: the memory it holds, and the time it takes.

Guarantees: a process that holds more than its limit is ended within some hundredths of a second.
Resident memory is what is watched: TensorFlow reserves far more addresses than it uses, so that
``ulimit -v`` would end it long before. It is a simulation, no fence: what is taken and given back
between two looks is seen in the kernel's own peak, afterwards.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil

_MIB = 1024**2


class Watch:
    """Asked with the process's id now and again; a text ends the process."""

    def __init__(self, limit_mib: float | None, seconds: float) -> None:
        self.ended: Literal["memory", "time"] | None = None
        self._limit_mib = limit_mib
        self._seconds = seconds
        self._begun = time.monotonic()

    def __call__(self, pid: int) -> str | None:
        if time.monotonic() - self._begun > self._seconds:
            self.ended = "time"
            return f"not done within {self._seconds:g} s"
        held = resident_mib(pid)
        if self._limit_mib is not None and held > self._limit_mib:
            self.ended = "memory"
            return above_limit(held, self._limit_mib)
        return None


def above_limit(held_mib: float, limit_mib: float) -> str:
    """The reason of a trial that took too much."""
    return f"the process held {held_mib:,.0f} MiB, more than the {limit_mib:,.0f} MiB it may"


def resident_mib(pid: int) -> float:
    """What a process holds; 0 where it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / _MIB
    except (OSError, ValueError, IndexError):
        with suppress(psutil.Error):
            return float(psutil.Process(pid).memory_info().rss) / _MIB
    return 0.0
