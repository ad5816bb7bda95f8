"""The machine from outside a training: samples one after the other, until somebody ends it."""

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
from tfopt.monitor.readings import Recording, Sample
from tfopt.monitor.sampler import Sampler, sampling

# A sample as one line: for people where there is no terminal, or as JSON for programs.
#
# The JSON object: ``at`` (ISO 8601, with the time zone), ``host`` (the host's metrics by name),
# ``gpus`` (each with ``index``, ``uuid``, ``name``, its metrics by name, ``missing`` with the
# reason for each null), ``no_gpu_reason``. Names and units are those of
# ``tfopt.monitor.metrics``.


def plain_line(sample: Sample, at: datetime) -> str:
    """Time, each GPU, host."""
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
    """Everything that was sampled."""
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
    return json.dumps(
        {
            "at": at.isoformat(timespec="milliseconds"),
            "host": asdict(sample.host),
            "gpus": gpus,
            "no_gpu_reason": recording.no_gpu_reason,
        },
        ensure_ascii=False,
    )


def _f(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


# What is looked at for findings: long enough for a trend, short enough to follow a change.
WINDOW_S = 600.0
FASTEST_S, SLOWEST_S = 0.1, 3600.0
_OF_THE_PROCESS = {"process_cpu_percent": None, "rss_mib": None}


class Watch:
    """What is sampled of all GPUs and the host; of one process too, where one is named."""

    def __init__(self, sampler: Sampler, samples: queue.SimpleQueue[Sample], own: bool) -> None:
        self._sampler = sampler
        self._samples = samples
        self._own = own

    @property
    def sampler(self) -> Sampler:
        """What takes the samples."""
        return self._sampler

    def samples(self) -> Iterator[Sample]:
        """Each sample once, as it comes; it never ends by itself."""
        while True:
            yield self._of_others(self._samples.get())

    def recording(self, window_s: float = WINDOW_S) -> Recording:
        """The last minutes."""
        newest = self._sampler.newest()
        recording = self._sampler.recording(newest.at_s - window_s) if newest else _EMPTY
        if not self._own:
            return recording
        return replace(recording, samples=tuple(map(self._of_others, recording.samples)))

    def _of_others(self, sample: Sample) -> Sample:
        """Without the figures of the process that only watches."""
        if not self._own:
            return sample
        host = replace(sample.host, **_OF_THE_PROCESS)
        return replace(
            sample, host=host, gpus=tuple(replace(gpu, process_mib=None) for gpu in sample.gpus)
        )


_EMPTY = Recording((), (), "nothing was sampled")


@contextmanager
def watching(
    interval_s: float, process_id: int | None, clock: Callable[[], float]
) -> Iterator[Watch]:
    """Samples for as long as the block runs."""
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
    """SIGTERM and a terminal that closes end it as Ctrl-C does, so that all is put in order."""

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
