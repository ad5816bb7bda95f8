"""A process beside the launcher that ends its tasks when the launcher is gone, as by kill -9.

Each task writes the number of its process group into the guard's standard input before it becomes
the user's command; the launcher writes it with a minus when that group has ended. The launcher
holds the other end of that pipe, so the guard reads its end when the launcher has ended,
however that came. Then the groups that are still there get SIGTERM and, after the grace, SIGKILL.
A process that has left its task's group and session on purpose is not found.
"""

from __future__ import annotations

import os
import signal
import sys
import time


def main(grace: float) -> None:
    """Waits for the launcher's end, then ends what it has left."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line)
        groups.add(number) if number > 0 else groups.discard(-number)
    groups = signalled(groups, signal.SIGTERM)
    if groups:
        told = f"[tfopt] the launcher is gone: ending {len(groups)} task(s)\n"
        _tell(told)
    deadline = time.monotonic() + grace
    while groups and time.monotonic() < deadline:
        time.sleep(0.1)
        groups = signalled(groups, 0)
    signalled(groups, signal.SIGKILL)


def signalled(groups: set[int], number: int) -> set[int]:
    """Sends the signal to each group; those that are still there."""
    there = set()
    for group in groups:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            continue
        except PermissionError:
            pass  # a task that has become another user
        there.add(group)
    return there


def _tell(told: str) -> None:
    """Tells it, if anybody is there to read it."""
    try:
        sys.stderr.write(told)
        sys.stderr.flush()
    except OSError:
        pass


if __name__ == "__main__":
    main(float(sys.argv[1]))
