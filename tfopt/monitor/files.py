"""Samples in files: CSV and Parquet, written whole or as a run goes, and read back.

Guarantees: what is read is the recording that was written (``tfopt.monitor.rows`` says how it lies
in the table); a file that is written whole appears whole or not at all. A file that grows with its
run (``CsvLog``) can be read at any moment and after the run was killed: a last line that was cut
off is left out.
"""

from __future__ import annotations

import csv
import io
import math
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from tfopt.errors import UserError
from tfopt.files import target_of, write_atomically
from tfopt.monitor.readings import Recording, Sample
from tfopt.monitor.rows import (
    COLUMNS,
    TEXTS,
    WHOLE,
    Row,
    about,
    of_sample,
    of_step,
    recording_of,
    rows,
)
from tfopt.monitor.sampler import Sampler


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
