"""A sample as one line: for people where there is no terminal, or as JSON for programs.

The JSON object: ``at`` (ISO 8601, with the time zone), ``host`` (the host's metrics by name),
``gpus`` (each with ``index``, ``uuid``, ``name``, its metrics by name, ``missing`` with the reason
for each null), ``no_gpu_reason``. Names and units are those of ``tfopt.monitor.metrics``.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime

from tfopt.monitor.findings.traces import mean_of_cores
from tfopt.monitor.readings import Recording, Sample


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
