"""How many processor cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores this process is allowed on; all of them where the system cannot tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
