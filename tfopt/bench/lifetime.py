"""How long this process has been there.

Guarantees: where the system counts a process's start from its own (Linux), right to one tick,
which is a hundredth of a second; elsewhere as right as psutil is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/self/stat")
# Of what follows the command's name, from the third field on: the start is field 22.
_START = 22 - 3


def lifetime_s() -> float:
    """Seconds since this process was started."""
    try:
        # psutil adds the same ticks to the time of the boot in whole seconds: off by up to one.
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        ticks = int(_after_name(_STAT.read_text(encoding="utf-8", errors="replace"))[_START])
        age = since_boot - ticks / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, ValueError, IndexError):
        age = -1.0
    return age if age > 0 else _by_psutil()


def _after_name(stat: str) -> list[str]:
    """The name may hold blanks and brackets of its own; the last bracket ends it."""
    return stat.rpartition(")")[2].split()


def _by_psutil() -> float:
    import psutil

    created: float = psutil.Process().create_time()
    return time.time() - created
