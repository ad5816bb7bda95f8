"""Looks at the processes of a test, which are those in its folder."""

import os
import time
from pathlib import Path


def wait_until(condition, patience_s=300):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def processes_in(folder):
    """Return the states of the processes that run in this folder, by their ids: "T" is stopped."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "cwd") == str(folder):
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[int(process.name)] = state
        except OSError:
            continue
    found.pop(os.getpid(), None)
    return found
