"""Write samples to CSV and Parquet files, whole or while a run goes on, and read them back.

A file is one table. Its columns are the metrics, and these:

    row     "about", "host", "gpu" or "step"
    at_s    seconds of the sampler's clock; of a step, when the last step of its mark ended
    device  the GPU's UUID
    told    of a row "about": what is true of the whole recording, or of the GPU; the last one holds

``told``, ``cpu_percent``, ``clock_reasons`` and ``processes`` are JSON. A sample is a row "host",
and after it a row "gpu" for each GPU. So what a spreadsheet needs of one GPU's power is ``at_s``
and ``power_w`` of the rows "gpu" with its UUID.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from tfopt.errors import UserError
from tfopt.files import target_of, write_atomically
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
from tfopt.monitor.sampler import Sampler

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


def write_csv(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Write a recording as CSV in UTF-8 with a header, and return where it is."""
    return write_atomically(target_of(path), _lines(_rows(recording), header=True))


def write_parquet(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Write a recording as Parquet, in the same columns; needs pyarrow."""
    target = target_of(path)
    arrow, parquet = _arrow()
    rows = list(_rows(recording))
    columns = {
        name: arrow.array([row.get(name) for row in rows], type=_type_of(name, arrow))
        for name in COLUMNS
    }
    return write_atomically(target, lambda place: parquet.write_table(arrow.table(columns), place))


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Return the recording in a file; Parquet is known by its suffix .parquet.

    A last line that was cut off, as of a run that was killed, is left out.

    Example:
        >>> findings(read_recording("samples.csv"))
    """
    source = Path(path).expanduser()
    try:
        table = _parquet_rows(source) if source.suffix == ".parquet" else _csv_rows(source)
        return _recording(table)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"There is no file {source}.", fix="mend its name") from None
    except Exception as error:
        raise UserError(
            f"{source} holds no samples that can be read.",
            expected="a file of tfopt's monitor: CSV, or Parquet with the suffix .parquet",
            received=f"{type(error).__name__}: {error}",
        ) from error


class CsvLog:
    """Write each sample to a CSV file as soon as it is taken, so that a killed run leaves them.

    A write that fails (a full disk) leaves a warning of the sampler, and nothing more is written,
    also when there is room again.
    """

    def __init__(self, path: str | os.PathLike[str], sampler: Sampler) -> None:
        self.path = write_atomically(target_of(path), _lines((), header=True))
        self._sampler = sampler
        self._about: tuple[Row, ...] = ()
        self._sampled_s = self._marked_s = -math.inf
        self._file: io.FileIO | None = self.path.open("ab", buffering=0)
        self._busy = threading.Lock()
        self._write()
        sampler.listen(self)

    def __call__(self, sample: Sample) -> None:
        """Write what is new; the sampler calls this."""
        self._write()

    def close(self) -> Path:
        """Write what has come since, and return the path."""
        try:
            self._write()
        finally:
            with self._busy:
                self._end()
        return self.path

    def _write(self) -> None:
        with self._busy:
            if self._file is None:
                return
            data = memoryview(self._new_lines().encode())
            try:
                while data:
                    data = data[self._file.write(data) or 0 :]
            except OSError:
                # Another line after half of one would be a file that nobody can read.
                self._end()
                raise

    def _end(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _new_lines(self) -> str:
        new = self._sampler.recording(math.nextafter(self._sampled_s, math.inf))
        rows: list[Row] = []
        about = tuple(_about(new))
        if about != self._about:
            rows.extend(about)
            self._about = about
        uuids = [gpu.uuid for gpu in new.gpus]
        for sample in new.samples:
            rows.extend(_of_sample(sample, uuids))
            self._sampled_s = sample.at_s
        # Asked for by themselves: a mark may come after a sample that is later than it.
        for mark in self._sampler.marks(math.nextafter(self._marked_s, math.inf)):
            rows.append(_of_step(mark))
            self._marked_s = mark.ended_s
        return _lines(rows)


def _rows(recording: Recording) -> Iterator[Row]:
    yield from _about(recording)
    uuids = [gpu.uuid for gpu in recording.gpus]
    for sample in recording.samples:
        yield from _of_sample(sample, uuids)
    yield from map(_of_step, recording.steps)


def _about(recording: Recording) -> Iterator[Row]:
    about = {
        "format": FORMAT,
        "no_gpu_reason": recording.no_gpu_reason,
        "host_missing": dict(recording.host_missing),
    }
    yield {"row": "about", "told": _json(about)}
    for gpu in recording.gpus:
        about = {"name": gpu.name, "missing": dict(gpu.missing), "part_of": gpu.part_of}
        yield {"row": "about", "device": gpu.uuid, "told": _json(about)}


def _of_sample(sample: Sample, uuids: Iterable[str]) -> Iterator[Row]:
    host = _values(sample.host)
    if sample.host.cpu_percent is not None:
        host["cpu_percent"] = _json(sample.host.cpu_percent)
    yield {"row": "host", "at_s": sample.at_s, **host}
    for uuid, gpu in zip(uuids, sample.gpus, strict=True):
        row = _values(gpu)
        if gpu.clock_reasons is not None:
            row["clock_reasons"] = _json([astuple(each) for each in gpu.clock_reasons])
        if gpu.processes is not None:
            row["processes"] = _json([astuple(each) for each in gpu.processes])
        yield {"row": "gpu", "at_s": sample.at_s, "device": uuid, **row}


def _of_step(mark: StepMark) -> Row:
    return {"row": "step", "at_s": mark.ended_s, **{name: getattr(mark, name) for name in _STEP}}


def _values(reading: HostReading | GpuReading) -> dict[str, Any]:
    return {field.name: getattr(reading, field.name) for field in fields(reading)}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _recording(table: Iterable[Row]) -> Recording:
    """Return the recording in these rows; a GPU without a row in a sample has an empty reading."""
    overall: dict[str, Any] = {}
    gpus: dict[str, dict[str, Any]] = {}
    moments: list[tuple[float, HostReading, dict[str, GpuReading]]] = []
    steps: list[StepMark] = []
    for row in table:
        kind, device = row.get("row"), row.get("device") or ""
        if kind == "about" and not device:
            overall = _overall(row)
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
        raise ValueError("no row says what the recording is")
    samples = (
        Sample(at_s, host, tuple(readings.get(uuid, GpuReading()) for uuid in gpus))
        for at_s, host, readings in moments
    )
    return Recording(
        tuple(samples),
        tuple(SampledGpu(uuid, **about) for uuid, about in gpus.items()),
        overall["no_gpu_reason"],
        tuple(steps),
        overall["host_missing"],
    )


def _overall(row: Row) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(row["told"])
    if about["format"] > FORMAT:
        raise UserError(
            "These samples were written by a newer tfopt.",
            expected=f"format {FORMAT} or older",
            received=f"format {about['format']}",
            fix="read them with that version: pip install --upgrade tfopt",
        )
    return about


def _host(row: Row) -> HostReading:
    values = {metric.name: row.get(metric.name) for metric in HOST_METRICS}
    if values["cpu_percent"] is not None:
        values["cpu_percent"] = tuple(json.loads(values["cpu_percent"]))
    return HostReading(**values)


def _gpu(row: Row) -> GpuReading:
    values = {metric.name: row.get(metric.name) for metric in GPU_METRICS}
    for name, kind in (("clock_reasons", ClockReason), ("processes", GpuProcess)):
        text = row.get(name)
        values[name] = None if text is None else tuple(kind(*each) for each in json.loads(text))
    return GpuReading(**values)


def _lines(table: Iterable[Row], *, header: bool = False) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(COLUMNS)
    for row in table:
        writer.writerow(["" if (value := row.get(name)) is None else value for name in COLUMNS])
    return text.getvalue()


def _csv_rows(source: Path) -> Iterable[Row]:
    text = source.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    for row in csv.DictReader(io.StringIO(whole)):
        yield {name: _value(name, text) for name, text in row.items() if text}


def _value(name: str, text: str) -> Any:
    if name in TEXTS:
        return text
    return int(text) if name in WHOLE else float(text)


def _parquet_rows(source: Path) -> Iterable[Row]:
    _, parquet = _arrow()
    table: list[Row] = parquet.read_table(source).to_pylist()
    return table


def _type_of(name: str, arrow: ModuleType) -> Any:
    if name in TEXTS:
        return arrow.string()
    return arrow.int64() if name in WHOLE else arrow.float64()


def _arrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            "Parquet files need pyarrow, which is not installed.",
            received=str(error),
            fix="pip install 'tfopt[parquet]', or write CSV",
        ) from error
    return pyarrow, pyarrow.parquet
