"""Write samples to CSV and Parquet files, whole or as a run goes, and read them back.

A recording is read back as it was written. A file that is written whole appears whole or not at
all. A file that grows with its run (``CsvLog``) can be read at any moment and after the run was
killed: a last line that was cut off is left out.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
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

# A recording as rows of one table, and back: what the files of samples hold.
#
# Guarantees: rows read back are the same recording, None and reasons included; a number is
# written so that the same number is read. The columns are those of the table of metrics, each
# with None in the rows it has no meaning for:
#
# row device holds host a sample of the host, at ``at_s`` seconds of the sampler's clock gpu UUID
# a sample of a GPU at that moment; its rows follow the host's step a mark of the training:
# ``at_s`` is when its last step ended about what is true of the whole recording, in ``told``; of
# several rows the last about UUID the same of a GPU: its name, why what is missing, what it is a
# part of
#
# ``cpu_percent``, ``clock_reasons``, ``processes`` and ``told`` are JSON. So what a spreadsheet
# needs of GPU 0's power is the rows with its UUID and ``row`` = gpu, the columns ``at_s`` and
# ``power_w``.

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


def write_csv(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Writes all of a recording as CSV in UTF-8 with a header."""
    return write_atomically(target_of(path), _lines(rows(recording), header=True))


def write_parquet(recording: Recording, path: str | os.PathLike[str]) -> Path:
    """Writes all of a recording as Parquet, in the same columns; needs pyarrow."""
    target = target_of(path)
    arrow, parquet = _arrow()
    told = list(rows(recording))
    columns = {
        name: arrow.array([row.get(name) for row in told], type=_type_of(name, arrow))
        for name in COLUMNS
    }
    return write_atomically(target, lambda place: parquet.write_table(arrow.table(columns), place))


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """The recording in a file that is written here; Parquet is known by its suffix .parquet."""
    source = Path(path).expanduser()
    try:
        table = _parquet_rows(source) if source.suffix == ".parquet" else _csv_rows(source)
        return recording_of(table)
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
    """A CSV file that grows with a sampler's samples, so that a run that is killed leaves them.

    What was at the path is replaced. Each sample is written as soon as it is taken, in one piece; a
    write that fails (a full disk) is told by the sampler in a warning: its lines are taken off
    again, and nothing more is written, also when there is room again. ``close`` writes what has
    come since, and is not needed for what is there already to be read.
    """

    def __init__(self, path: str | os.PathLike[str], sampler: Sampler) -> None:
        self.path = write_atomically(target_of(path), _lines((), header=True))
        self._sampler = sampler
        self._about: tuple[Row, ...] = ()
        self._sampled_s = self._marked_s = -math.inf
        self._file: io.FileIO | None = self.path.open("ab", buffering=0)
        self._busy = threading.Lock()
        self._process = os.getpid()
        self._write()
        sampler.listen(self)

    def __call__(self, sample: Sample) -> None:
        """Writes what is new; the sampler calls this."""
        self._write()

    def close(self) -> Path:
        """Writes the rest and returns the path."""
        if self._file is not None and os.getpid() == self._process:
            try:
                self._write()
            finally:
                with self._busy:
                    self._end()
        return self.path

    def _write(self) -> None:
        # A forked process has the same file, and a lock that nobody may open.
        if os.getpid() != self._process:
            return
        with self._busy:
            if self._file is None:
                return
            data = memoryview(self._new_lines().encode())
            whole = self._file.seek(0, os.SEEK_END)
            try:
                while data:
                    data = data[self._file.write(data) or 0 :]
            except OSError:
                # Half a line with another after it is a file that nobody can read.
                with suppress(OSError):
                    self._file.truncate(whole)
                self._end()
                raise

    def _end(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _new_lines(self) -> str:
        new = self._sampler.recording(math.nextafter(self._sampled_s, math.inf))
        told: list[Row] = []
        now = tuple(about(new))
        if now != self._about:
            told.extend(now)
            self._about = now
        uuids = [gpu.uuid for gpu in new.gpus]
        for sample in new.samples:
            told.extend(of_sample(sample, uuids))
            self._sampled_s = sample.at_s
        # Asked for by themselves: a mark may come after a sample that is later than it.
        for mark in self._sampler.steps(math.nextafter(self._marked_s, math.inf)):
            told.append(of_step(mark))
            self._marked_s = mark.ended_s
        return _lines(told)


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
    # A run that was killed may have left half a line.
    whole = text[: text.rfind("\n") + 1]
    for row in csv.DictReader(io.StringIO(whole)):
        yield {name: _value(name, told) for name, told in row.items() if told}


def _value(name: str, told: str) -> Any:
    if name in TEXTS:
        return told
    return int(told) if name in WHOLE else float(told)


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
