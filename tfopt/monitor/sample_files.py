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
import os
import threading
from collections import deque
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
    """Write each sample to a CSV file immediately, and the marks of the training before it.

    A failed write (a full disk) is a warning of the sampler, and ends the writing.
    """

    def __init__(self, path: str | os.PathLike[str], sampler: Sampler) -> None:
        self.path = target_of(path)
        self._sampler = sampler
        self._about: tuple[dict[str, Any], ...] = ()
        self._file = self.path.open("w", encoding="utf-8", newline="")
        self._table = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
        self._table.writeheader()
        self._busy = threading.Lock()
        recording = sampler.recording()
        self._marks = deque(recording.steps)
        for sample in recording.samples:
            self(sample)
        sampler.listen(self)

    def __call__(self, moment: Sample | StepMark) -> None:
        """Write the rows of a sample, or keep a mark for the next one; called by the sampler.

        A mark comes from the thread that trains, which does not wait for a disk.
        """
        if isinstance(moment, StepMark):
            self._marks.append(moment)
            return
        with self._busy:
            if not self._file.closed:
                self._table.writerows(self._sample_rows(moment))
                self._table.writerows(self._step_rows())
                self._file.flush()

    def close(self) -> Path:
        """Write the last marks, and return the path."""
        with self._busy:
            if not self._file.closed:
                with closing(self._file):
                    self._table.writerows(self._step_rows())
        return self.path

    def _sample_rows(self, sample: Sample) -> Iterator[dict[str, Any]]:
        recording = self._sampler.recording(sample.at_s, sample.at_s)
        about = tuple(_about(recording))
        if about != self._about:
            yield from about
            self._about = about
        when = {"at_s": sample.at_s, "time": sample.time and sample.time.isoformat()}
        yield {"row": "host", **when, **_values(sample.host)}
        # After the loss of a driver a sample has no GPUs.
        for gpu, reading in zip(recording.gpus, sample.gpus, strict=False):
            yield {"row": "gpu", **when, "device": gpu.uuid, **_values(reading)}

    def _step_rows(self) -> Iterator[dict[str, Any]]:
        while self._marks:
            mark = self._marks.popleft()
            figures = {name: getattr(mark, name) for name in _STEP}
            yield {"row": "step", "at_s": mark.ended_s, **figures}


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
