"""A recording as rows of one table, and back: what the files of samples hold.

Guarantees: rows read back are the same recording, None and reasons included; a number is written so
that the same number is read. The columns are those of the table of metrics, each with None in the
rows it has no meaning for:

    row     device  holds
    host            a sample of the host, at ``at_s`` seconds of the sampler's clock
    gpu     UUID    a sample of a GPU at that moment; its rows follow the host's
    step            a mark of the training: ``at_s`` is when its last step ended
    about           what is true of the whole recording, in ``told``; of several rows the last
    about   UUID    the same of a GPU: its name, why what is missing, what it is a part of

``cpu_percent``, ``clock_reasons``, ``processes`` and ``told`` are JSON. So what a spreadsheet needs
of GPU 0's power is the rows with its UUID and ``row`` = gpu, the columns ``at_s`` and ``power_w``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from tfopt.errors import UserError
from tfopt.monitor.metrics import GPU_METRICS, HOST_METRICS
from tfopt.monitor.readings import (
    ClockReason,
    GpuProcess,
    GpuReading,
    HostReading,
    Recording,
    Sample,
    SampledGpu,
    StepMark,
)

FORMAT = 1
_STEP = tuple(field.name for field in fields(StepMark) if field.name != "ended_s")
TEXTS = ("row", "device", "cpu_percent", "clock_reasons", "processes", "told")
WHOLE = ("steps", "examples")
COLUMNS = (
    "row",
    "at_s",
    "device",
    *(metric.name for metric in GPU_METRICS),
    "clock_reasons",
    "processes",
    *(metric.name for metric in HOST_METRICS),
    *_STEP,
    "told",
)

Row = Mapping[str, Any]
"""A column that is not there is None."""


def rows(recording: Recording) -> Iterator[Row]:
    """All of a recording; what is about it comes first."""
    yield from about(recording)
    uuids = [gpu.uuid for gpu in recording.gpus]
    for sample in recording.samples:
        yield from of_sample(sample, uuids)
    yield from (of_step(mark) for mark in recording.steps)


def about(recording: Recording) -> Iterator[Row]:
    """What is true of all its samples."""
    told = {
        "format": FORMAT,
        "no_gpu_reason": recording.no_gpu_reason,
        "host_missing": dict(recording.host_missing),
    }
    yield {"row": "about", "told": _json(told)}
    for gpu in recording.gpus:
        told = {"name": gpu.name, "missing": dict(gpu.missing), "part_of": gpu.part_of}
        yield {"row": "about", "device": gpu.uuid, "told": _json(told)}


def of_sample(sample: Sample, uuids: Iterable[str]) -> Iterator[Row]:
    """The host's row, then one for each GPU."""
    host = _values(sample.host)
    if sample.host.cpu_percent is not None:
        host["cpu_percent"] = _json(sample.host.cpu_percent)
    yield {"row": "host", "at_s": sample.at_s, **host}
    for uuid, gpu in zip(uuids, sample.gpus, strict=True):
        row = _values(gpu)
        if gpu.clock_reasons is not None:
            row["clock_reasons"] = _json([[why.told, why.throttles] for why in gpu.clock_reasons])
        if gpu.processes is not None:
            row["processes"] = _json([[each.pid, each.name, each.mib] for each in gpu.processes])
        yield {"row": "gpu", "at_s": sample.at_s, "device": uuid, **row}


def of_step(mark: StepMark) -> Row:
    """A mark's row."""
    return {"row": "step", "at_s": mark.ended_s, **{name: getattr(mark, name) for name in _STEP}}


def recording_of(table: Iterable[Row]) -> Recording:
    """The recording that these rows are of; a GPU without a row in a sample told nothing there."""
    overall: dict[str, Any] = {}
    gpus: dict[str, dict[str, Any]] = {}
    moments: list[tuple[float, HostReading, dict[str, GpuReading]]] = []
    steps: list[StepMark] = []
    for row in table:
        kind, device = row.get("row"), row.get("device") or ""
        if kind == "about" and not device:
            overall = _about(row)
        elif kind == "about":
            gpus[device] = json.loads(row["told"])
        elif kind == "host":
            moments.append((row["at_s"], _host(row), {}))
        elif kind == "gpu" and moments:
            moments[-1][2][device] = _gpu(row)
        elif kind == "step":
            steps.append(StepMark(row["at_s"], **{name: row.get(name) for name in _STEP}))
        else:
            raise ValueError(f"a row of kind {kind!r} at this place")
    if not overall:
        raise ValueError("no row tells what the recording is")
    samples = (
        Sample(at_s, host, tuple(told.get(uuid, GpuReading()) for uuid in gpus))
        for at_s, host, told in moments
    )
    return Recording(
        tuple(samples),
        tuple(SampledGpu(uuid, **told) for uuid, told in gpus.items()),
        overall["no_gpu_reason"],
        tuple(steps),
        overall["host_missing"],
    )


def _about(row: Row) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(row["told"])
    if told["format"] > FORMAT:
        raise UserError(
            "These samples were written by a newer tfopt.",
            expected=f"format {FORMAT} or older",
            received=f"format {told['format']}",
            fix="read them with that version: pip install --upgrade tfopt",
        )
    return told


def _host(row: Row) -> HostReading:
    values = {metric.name: row.get(metric.name) for metric in HOST_METRICS}
    cores = values["cpu_percent"]
    return HostReading(**values | {"cpu_percent": None if cores is None else tuple(_read(cores))})


def _gpu(row: Row) -> GpuReading:
    values = {metric.name: row.get(metric.name) for metric in GPU_METRICS}
    reasons, processes = row.get("clock_reasons"), row.get("processes")
    return GpuReading(
        **values,
        clock_reasons=None if reasons is None else tuple(ClockReason(*e) for e in _read(reasons)),
        processes=None if processes is None else tuple(GpuProcess(*e) for e in _read(processes)),
    )


def _values(reading: HostReading | GpuReading) -> dict[str, Any]:
    return {field.name: getattr(reading, field.name) for field in fields(reading)}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _read(text: str) -> Any:
    return json.loads(text)
