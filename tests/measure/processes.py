"""Looks at the worker processes of a test, which are those in its folder."""

import os
import time
from pathlib import Path


def wait_until(condition, patience_s=90):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_in(folder):
    """Return the commands of the workers that still run in this folder."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "cwd") == str(folder):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in found if "tfopt.measure.worker" in line]
