"""One job: ``tfopt doctor --job my.train:job``.

Guarantees: the job's module is imported, and its steps are trained, in a process of its own that
is killed at a limit of time; what killed it is told with what it was at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tfopt.bench.container import read_limits
from tfopt.diagnosis.check import Check, Inspection, Subject
from tfopt.diagnosis.disk import read_rate
from tfopt.diagnosis.limits import within
from tfopt.diagnosis.process import ask
from tfopt.monitor.nvml import gpu_memories

_MIB = 1024**2
_LISTING_S = 20.0
_READING_S = 60.0


def job(subject: Subject) -> Iterable[Check]:
    """All that is looked at in one job; nothing where none is named."""
    if subject.job is None:
        told = "none is named: tfopt doctor --job my_package.train:job looks at one"
        yield Check("job", "job", "not here", told)
        return
    there_mib, of = _memory(subject)
    asked = {
        "job": subject.job,
        "arguments": dict(subject.arguments),
        "chain": None if subject.chain is None else str(subject.chain),
        "memory_mib": there_mib,
        "memory_of": of,
        "read_mib_per_s": None if subject.data is None else _read_rate(subject.data),
    }
    found = ask("job", asked, subject.job_limit_s)
    yield from map(_check, found.answers)
    if found.ended is not None:
        fix = "train it by itself to see more; with SIGKILL, try a smaller batch first"
        told = f"the job's process ended while at: {found.at}"
        yield Check("job", "job", "failure", told, (found.ended,), fix)


def _read_rate(folder: Path) -> float | None:
    try:
        return within(_READING_S, lambda: read_rate(folder)).mib_per_s
    except OSError:  # a TimeoutError too: the disk's own check tells what is wrong
        return None


def _check(answer: Mapping[str, Any]) -> Check:
    return Check(**{**answer, "evidence": tuple(answer["evidence"])})


def _memory(subject: Subject) -> tuple[float, str]:
    """What the step has: the smallest GPU's memory, or the host's, within its container."""
    gpus = within(_LISTING_S, gpu_memories)
    if isinstance(gpus, list) and gpus:
        return min(gpu.total_mib for gpu in gpus), "the GPU"
    free = psutil.virtual_memory().available / _MIB
    limit = read_limits(subject.root).memory_gib
    return (free, "the host") if limit is None else (min(free, limit * 1024), "the container")


INSPECTIONS = (Inspection("job", "job", job, limit_s=None),)
