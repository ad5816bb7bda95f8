"""Measure how fast the data's folder is read in sequence, and what is free there.

The user's files are only read, and their pages dropped from the system's cache first; a disk's or a
cloud's own cache is not emptied.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from tfopt.doctor.check import Check, Subject

_MIB = 1024**2
_MOST_MIB = 256
_BLOCK = 4 * _MIB
_MOST_S = 3.0
_ENOUGH_MIB = 16
_LOOKED_AT = 2000
# A hard disk reads some 100 MiB/s in sequence: less is a network or a throttled volume.
_SLOW_MIB_PER_S = 50.0
_LEAST_FREE_DISK_GIB = 2.0


def read_rate(folder: Path) -> tuple[float, str] | None:
    """Return the MiB/s of reading a folder's largest file, and how; None where all are small."""
    path = _largest(folder)
    if path is None or path.stat().st_size < _ENOUGH_MIB * _MIB:
        return None
    _drop_from_cache(path)
    mib, seconds = _read(path)
    how = f"{mib:.0f} MiB of {path.name} in sequence, its pages dropped from the cache first"
    return mib / max(seconds, 1e-9), how


def disk(subject: Subject) -> Iterable[Check]:
    """Check the space in the data's folder, or the temporary one, and how fast data is read."""
    folder = subject.data or Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free / 1024**3
    if free < _LEAST_FREE_DISK_GIB:
        text, fix = f"{free:.2f} GiB are free in {folder}", "free space: caches and checkpoints"
        yield Check("disk", "free space", "warning", text, (), fix)
    else:
        yield Check("disk", "free space", "ok", f"{free:.0f} GiB free in {folder}")
    if subject.data is None:
        yield Check("disk", "read rate", "not here", "no --data folder is named")
        return
    try:
        rate = read_rate(folder)
    except OSError as error:
        text = f"{folder} could not be read: {error.strerror or error}"
        yield Check("disk", "read rate", "warning", text, (), "name another folder with --data")
        return
    if rate is None:
        text = f"{folder} has no file of {_ENOUGH_MIB} MiB or more"
        yield Check("disk", "read rate", "not here", text)
        return
    mib_per_s, how = rate
    text = f"{mib_per_s:,.0f} MiB/s from {folder}"
    if mib_per_s < _SLOW_MIB_PER_S:
        fix = "copy the data to a local disk, or keep it in memory: tfopt.pipeline(cache='memory')"
        text += ": slower than a hard disk"
        yield Check("disk", "read rate", "warning", text, (how,), fix)
    else:
        yield Check("disk", "read rate", "ok", text, (how,))


def _largest(folder: Path) -> Path | None:
    """Return the largest of the first files that are found: a data set may have millions."""
    found: list[tuple[int, str]] = []
    looked_at = 0
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(base, name)
            looked_at += 1
            if os.path.isfile(path) and not os.path.islink(path) and os.access(path, os.R_OK):
                found.append((os.path.getsize(path), path))
        if looked_at > _LOOKED_AT:
            break
    return Path(max(found)[1]) if found else None


def _drop_from_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path) -> tuple[float, float]:
    """Return the MiB and seconds of reading a bounded part of the file."""
    done = 0
    begun = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while done < _MOST_MIB * _MIB and time.perf_counter() - begun < _MOST_S:
            block = file.read(_BLOCK)
            if not block:
                break
            done += len(block)
    return done / _MIB, time.perf_counter() - begun
