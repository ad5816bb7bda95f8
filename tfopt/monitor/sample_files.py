"""Write samples to a CSV file during a run, or as lines of JSON.

A file is one table, which ``pandas.read_csv`` reads. Its columns are the metrics, and these:

    time    date, time and zone of a sample, as ISO 8601 has them
    row     "about", "host", "gpu" or "step"
    at_s    seconds of the sampler's clock; for a step, the end of the last step of its mark
    device  the GPU's UUID
    told    in a row "about", facts about the recording or the GPU; the last row is valid

``told``, ``clock_reasons`` and ``processes`` are JSON. A sample is a row "host" and a row "gpu" for
each GPU. A curve of a GPU's power is ``at_s`` and ``power_w`` of the rows "gpu" with its UUID.
"""

from __future__ import annotations

import csv
import json
import math
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

from tfopt.files import target_of
from tfopt.monitor.readings import (
    GPU_METRICS,
    HOST_METRICS,
    GpuReading,
    HostReading,
    Recording,
    Sample,
    StepMark,
)
from tfopt.monitor.sampler import Sampler

FORMAT = 1
_STEP = tuple(field.name for field in fields(StepMark) if field.name != "ended_s")
COLUMNS = (
    "time",
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


class CsvLog:
    """Write each sample to a CSV file immediately.

    A failed write (a full disk) is a warning of the sampler, and ends the writing.
    """

    def __init__(self, path: str | os.PathLike[str], sampler: Sampler) -> None:
        self.path = target_of(path)
        self._sampler = sampler
        self._about: tuple[dict[str, Any], ...] = ()
        self._sampled_s = self._marked_s = -math.inf
        self._file = self.path.open("w", encoding="utf-8", newline="")
        self._table = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
        self._table.writeheader()
        self._busy = threading.Lock()
        self._write()
        sampler.listen(self)

    def __call__(self, sample: Sample) -> None:
        """Write new rows; called by the sampler."""
        self._write()

    def close(self) -> Path:
        """Write the last rows, and return the path."""
        with closing(self._file):
            self._write()
        return self.path

    def _write(self) -> None:
        with self._busy:
            if not self._file.closed:
                self._table.writerows(self._new_rows())
                self._file.flush()

    def _new_rows(self) -> Iterator[dict[str, Any]]:
        new = self._sampler.recording(math.nextafter(self._sampled_s, math.inf))
        about = tuple(_about(new))
        if about != self._about:
            yield from about
            self._about = about
        uuids = [gpu.uuid for gpu in new.gpus]
        for sample in new.samples:
            moment = {"at_s": sample.at_s, "time": sample.time and sample.time.isoformat()}
            yield {"row": "host", **moment, **_values(sample.host)}
            for uuid, gpu in zip(uuids, sample.gpus, strict=True):
                yield {"row": "gpu", **moment, "device": uuid, **_values(gpu)}
            self._sampled_s = sample.at_s
        # Separately, since a mark may arrive after a later sample.
        for mark in self._sampler.marks(math.nextafter(self._marked_s, math.inf)):
            yield {"row": "step", "at_s": mark.ended_s, **{n: getattr(mark, n) for n in _STEP}}
            self._marked_s = mark.ended_s


def _about(recording: Recording) -> Iterator[dict[str, Any]]:
    about = {
        "format": FORMAT,
        "no_gpu_reason": recording.no_gpu_reason,
        "host_missing": dict(recording.host_missing),
    }
    yield {"row": "about", "told": _json(about)}
    for gpu in recording.gpus:
        about = {"name": gpu.name, "missing": dict(gpu.missing)}
        yield {"row": "about", "device": gpu.uuid, "told": _json(about)}


def _values(reading: HostReading | GpuReading) -> dict[str, Any]:
    values = {field.name: getattr(reading, field.name) for field in fields(reading)}
    return {name: _json(v) if isinstance(v, tuple) else v for name, v in values.items()}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=astuple)


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
