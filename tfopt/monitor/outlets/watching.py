"""Watch a machine from outside a training, and write each sample as a line."""

from __future__ import annotations

import json
import queue
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psutil

from tfopt.errors import UserError, within
from tfopt.monitor.readings import Recording, Sample
from tfopt.monitor.sampler import Sampler, sampling

# For findings: long enough for a trend, short enough to follow a change.
_WINDOW_S = 600.0
_FASTEST_S, _SLOWEST_S = 0.1, 3600.0


def plain_line(sample: Sample, at: datetime) -> str:
    """Return a line for people where there is no terminal: the time, each GPU, the host."""
    parts = [at.strftime("%H:%M:%S")]
    for place, gpu in enumerate(sample.gpus):
        parts.append(
            f"GPU {place} {_whole(gpu.utilisation_percent)} % "
            f"{_whole(gpu.device_mib)}/{_whole(gpu.total_mib)} MiB "
            f"{_whole(gpu.power_w)}/{_whole(gpu.power_limit_w)} W "
            f"{_whole(gpu.temperature_c)} °C {_whole(gpu.sm_clock_mhz)} MHz"
        )
    host = sample.host
    parts.append(
        f"CPU {_whole(host.mean_cpu_percent)} % memory {_whole(host.memory_used_mib)}/"
        f"{_whole(host.memory_total_mib)} MiB"
    )
    return " | ".join(parts)


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def json_line(sample: Sample, recording: Recording, at: datetime) -> str:
    """Return a line for programs: a JSON object with everything that was sampled.

    Names and units are those of ``tfopt.monitor.readings``; ``missing`` says why a metric of a GPU
    is null.
    """
    gpus = [
        {
            "index": place,
            "uuid": gpu.uuid,
            "name": gpu.name,
            **asdict(reading),
            "missing": dict(gpu.missing),
        }
        for place, (gpu, reading) in enumerate(zip(recording.gpus, sample.gpus, strict=False))
    ]
    line = {
        "at": at.isoformat(timespec="milliseconds"),
        "host": asdict(sample.host),
        "gpus": gpus,
        "no_gpu_reason": recording.no_gpu_reason,
    }
    return json.dumps(line, ensure_ascii=False)


@dataclass(frozen=True)
class Watch:
    """Samples of all GPUs and the host, and of one process where one is named."""

    sampler: Sampler
    _samples: queue.SimpleQueue[Sample]

    def samples(self) -> Iterator[Sample]:
        """Yield each sample once, as it comes, without end."""
        while True:
            yield self._samples.get()

    def recording(self) -> Recording:
        """Return the recording of the last minutes."""
        newest = self.sampler.newest()
        return self.sampler.recording(0.0 if newest is None else newest.at_s - _WINDOW_S)


@contextmanager
def watching(
    interval_s: float, process_id: int | None, clock: Callable[[], float]
) -> Iterator[Watch]:
    """Sample all GPUs and the host, and a process if one is given, while the block runs."""
    if not within(interval_s, _FASTEST_S, _SLOWEST_S + 1e-9):
        raise UserError(
            "Invalid interval between samples.",
            expected=f"seconds, from {_FASTEST_S} to {_SLOWEST_S:.0f}",
            received=repr(interval_s),
        )
    if process_id is not None and not psutil.pid_exists(process_id):
        raise UserError(
            "There is no process of that number to watch.",
            expected="the number of a process that runs on this machine",
            received=str(process_id),
        )
    samples: queue.SimpleQueue[Sample] = queue.SimpleQueue()
    with sampling(
        process_id, clock=clock, wanted="all", period_s=interval_s, listeners=(samples.put,)
    ) as sampler:
        yield Watch(sampler, samples)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block in good order on SIGTERM and a terminal that closes, as on Ctrl-C."""

    def end(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
