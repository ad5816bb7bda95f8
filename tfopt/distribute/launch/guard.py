"""End the tasks of a launcher that is gone, as by kill -9; a process of its own.

Each task writes the number of its process group into the guard's standard input before it becomes
the user's command; the launcher writes it with a minus when that group has ended. The launcher
holds the other end of that pipe, so the guard reads its end when the launcher has ended,
however that came. A process that has left its task's group and session on purpose is not found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time


def main(grace: float) -> None:
    """Wait for the launcher's end, then end what it has left: SIGTERM, after the grace SIGKILL."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line)
        groups.add(number) if number > 0 else groups.discard(-number)
    groups = signalled(groups, signal.SIGTERM)
    if groups:
        with contextlib.suppress(OSError):  # nobody may be there to read it
            sys.stderr.write(f"[tfopt] the launcher is gone: ending {len(groups)} task(s)\n")
            sys.stderr.flush()
    deadline = time.monotonic() + grace
    while groups and time.monotonic() < deadline:
        time.sleep(0.1)
        groups = signalled(groups, 0)
    signalled(groups, signal.SIGKILL)


def signalled(groups: set[int], number: int) -> set[int]:
    """Send the signal to each group; return those that are still there."""
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


if __name__ == "__main__":
    main(float(sys.argv[1]))
