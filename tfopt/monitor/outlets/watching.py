"""Watch a machine from outside a training."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict

import psutil

from tfopt.errors import UserError, within
from tfopt.monitor.readings import Recording, Sample
from tfopt.monitor.sampler import Sampler

_FASTEST_S, _SLOWEST_S = 0.1, 3600.0


def json_line(sample: Sample, recording: Recording) -> str:
    """Return a sample as a JSON object, with the names of ``tfopt.monitor.readings``."""
    line = {
        "at": sample.time and sample.time.isoformat(timespec="milliseconds"),
        "host": asdict(sample.host),
        "gpus": [
            {"index": place, **asdict(gpu), **asdict(reading)}
            for place, (gpu, reading) in enumerate(zip(recording.gpus, sample.gpus, strict=False))
        ],
        "no_gpu_reason": recording.no_gpu_reason,
    }
    return json.dumps(line, ensure_ascii=False)


@contextmanager
def watching(
    interval_s: float, process_id: int | None, clock: Callable[[], float]
) -> Iterator[tuple[Sampler, Iterator[Sample]]]:
    """Yield a sampler of all GPUs, the host and a process, and its samples at each interval."""
    if not within(interval_s, _FASTEST_S, _SLOWEST_S + 1e-9):
        raise UserError(
            "Invalid interval between samples.",
            expected=f"seconds, from {_FASTEST_S} to {_SLOWEST_S:.0f}",
            received=repr(interval_s),
        )
    if process_id is not None and not psutil.pid_exists(process_id):
        raise UserError(
            "There is no process with this id.",
            expected="the id of a running process",
            received=str(process_id),
        )
    with closing(Sampler(process_id, clock, "all")) as sampler:
        yield sampler, _samples(sampler, interval_s)


def _samples(sampler: Sampler, interval_s: float) -> Iterator[Sample]:
    while True:
        yield sampler.take()
        time.sleep(interval_s)
