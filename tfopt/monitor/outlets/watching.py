"""Watch a machine from outside a training, and write each sample as a line."""

from __future__ import annotations

import json
import os
import queue
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import psutil

from tfopt.errors import UserError, within
from tfopt.monitor.findings.finding import mean_of_cores
from tfopt.monitor.readings import GpuReading, Recording, Sample
from tfopt.monitor.sampler import Sampler, sampling


def plain_line(sample: Sample, at: datetime) -> str:
    """Return a line for people where there is no terminal: the time, each GPU, the host."""
    parts = [at.strftime("%H:%M:%S")]
    for place, gpu in enumerate(sample.gpus):
        parts.append(
            f"GPU {place} {_f(gpu.utilisation_percent)} % "
            f"{_f(gpu.device_mib)}/{_f(gpu.total_mib)} MiB "
            f"{_f(gpu.power_w)}/{_f(gpu.power_limit_w)} W "
            f"{_f(gpu.temperature_c)} °C {_f(gpu.sm_clock_mhz)} MHz"
        )
    host = sample.host
    parts.append(
        f"CPU {_f(mean_of_cores(host))} % memory {_f(host.memory_used_mib)}/"
        f"{_f(host.memory_total_mib)} MiB"
    )
    return " | ".join(parts)


def json_line(sample: Sample, recording: Recording, at: datetime) -> str:
    """Return a line for programs: a JSON object with everything that was sampled.

    Names and units are those of ``tfopt.monitor.metrics``; ``missing`` says why a metric of a GPU
    is null.
    """
    gpus = [
        {
            "index": place,
            "uuid": gpu.uuid,
            "name": gpu.name,
            **_gpu(reading),
            "missing": dict(gpu.missing),
        }
        for place, (gpu, reading) in enumerate(zip(recording.gpus, sample.gpus, strict=False))
    ]
    return json.dumps(
        {
            "at": at.isoformat(timespec="milliseconds"),
            "host": asdict(sample.host),
            "gpus": gpus,
            "no_gpu_reason": recording.no_gpu_reason,
        },
        ensure_ascii=False,
    )


def _gpu(reading: GpuReading) -> dict[str, Any]:
    values = asdict(reading)
    if reading.clock_reasons is not None:
        values["clock_reasons"] = [
            {"told": each.description, "throttles": each.throttles}
            for each in reading.clock_reasons
        ]
    return values


def _f(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


# For findings: long enough for a trend, short enough to follow a change.
WINDOW_S = 600.0
FASTEST_S, SLOWEST_S = 0.1, 3600.0


class Watch:
    """Samples of all GPUs and the host, and of one process where one is named."""

    def __init__(self, sampler: Sampler, samples: queue.SimpleQueue[Sample], own: bool) -> None:
        self.sampler = sampler
        self._samples = samples
        self._own = own

    def samples(self) -> Iterator[Sample]:
        """Yield each sample once, as it comes, without end."""
        while True:
            yield self._of_others(self._samples.get())

    def recording(self, window_s: float = WINDOW_S) -> Recording:
        """Return the recording of the last minutes."""
        newest = self.sampler.newest()
        recording = self.sampler.recording(newest.at_s - window_s) if newest else _EMPTY
        if not self._own:
            return recording
        return replace(recording, samples=tuple(map(self._of_others, recording.samples)))

    def _of_others(self, sample: Sample) -> Sample:
        """Return the sample without the figures of this process, if it only watches."""
        if not self._own:
            return sample
        host = replace(sample.host, process_cpu_percent=None, rss_mib=None)
        gpus = tuple(replace(gpu, process_mib=None) for gpu in sample.gpus)
        return replace(sample, host=host, gpus=gpus)


_EMPTY = Recording((), (), "nothing was sampled")


@contextmanager
def watching(
    interval_s: float, process_id: int | None, clock: Callable[[], float]
) -> Iterator[Watch]:
    """Sample all GPUs and the host, and a process if one is given, while the block runs."""
    if not within(interval_s, FASTEST_S, SLOWEST_S + 1e-9):
        raise UserError(
            "The interval is none to sample at.",
            expected=f"seconds, from {FASTEST_S} to {SLOWEST_S:.0f}",
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
        os.getpid() if process_id is None else process_id,
        clock=clock,
        wanted="all",
        period_s=interval_s,
        listeners=(samples.put,),
    ) as sampler:
        yield Watch(sampler, samples, own=process_id is None)


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
