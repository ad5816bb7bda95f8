"""Check one job, whose module is imported and whose steps are trained in another process."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psutil

from tfopt.doctor.check import Check, Subject
from tfopt.doctor.disk_checks import read_rate
from tfopt.doctor.isolated import ask, within
from tfopt.measure.machine import read_limits
from tfopt.monitor.nvml import gpu_memories

_MIB = 1024**2
_LISTING_S = 20.0
_READING_S = 60.0


def job(subject: Subject) -> Iterable[Check]:
    """Yield what is found in the job; "not here" where none is named."""
    if subject.job is None:
        text = "none is named: tfopt doctor --job my_package.train:job looks at one"
        yield Check("job", "job", "not here", text)
        return
    memory_mib, owner = _memory(subject)
    asked = {
        "job": subject.job,
        "arguments": dict(subject.arguments),
        "chain": None if subject.chain is None else str(subject.chain),
        "memory_mib": memory_mib,
        "memory_of": owner,
        "read_mib_per_s": None if subject.data is None else _read_rate(subject.data),
    }
    found = ask("job", asked, subject.job_limit_s)
    for answer in found.answers:
        yield Check(**{**answer, "evidence": tuple(answer["evidence"])})
    if found.ended is not None:
        fix = "train it by itself to see more; with SIGKILL, try a smaller batch first"
        text = f"the job's process ended while at: {found.at}"
        yield Check("job", "job", "failure", text, (found.ended,), fix)


def _read_rate(folder: Path) -> float | None:
    try:
        return within(_READING_S, lambda: read_rate(folder)).mib_per_s
    except OSError:  # a TimeoutError too: the disk's own check says what is wrong
        return None


def _memory(subject: Subject) -> tuple[float, str]:
    """Return the memory for a step: the smallest GPU's, or the host's within its container."""
    gpus = within(_LISTING_S, gpu_memories)
    if isinstance(gpus, list) and gpus:
        return min(gpu.total_mib for gpu in gpus), "the GPU"
    free = psutil.virtual_memory().available / _MIB
    limit = read_limits(subject.root).memory_gib
    return (free, "the host") if limit is None else (min(free, limit * 1024), "the container")
