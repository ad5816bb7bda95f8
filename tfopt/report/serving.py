"""Hold what models weigh and how fast they answer when they serve, and lay it out in a table.

What was not measured is None, with its reason in ``notes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from tfopt.report import format as fmt
from tfopt.report.statistics import Comparison
from tfopt.report.strict import AboveZero, ReportError
from tfopt.report.table import (
    Cell,
    Column,
    Row,
    Table,
    absent,
    compared,
    figure,
    is_change,
    size_tone,
    table_of,
)


@dataclass(frozen=True)
class Footprint:
    """One model.

    Attributes:
        name: What it is called in the comparison.
        parameters: Weights of the Keras model; None for a file.
        zeros: How many of them are zero.
        gflop_per_example: Arithmetic of one inference, in 10^9 operations, as TensorFlow's profiler
            counts them (``tfopt.compress.channels_report`` counts products with kernels alone);
            zeros count as others.
        kib: The LiteRT file: in float32 for a Keras model.
        gzip_kib: The same file, compressed as for a download.
        sparse_kib: The same file with sparse kernels stored as such.
        latency_ms: Median time of one example on LiteRT; None where inputs leave a size open.
        latency: That against the first row's; None for the first row itself, or without both.
        notes: Why something is missing, and what to know.
    """

    name: str
    parameters: int | None
    zeros: int | None
    gflop_per_example: float | None
    kib: AboveZero
    gzip_kib: AboveZero
    sparse_kib: float | None
    latency_ms: float | None
    latency: Comparison | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Footprints:
    """Several models, measured in turns on one machine.

    Attributes:
        engine: What ran them: its version, threads and delegate.
        rows: In the order given, the reference first.
        missing: Names of which there is no file, each with the reason.
        compared: Whether the first row is the reference; False: that has no file.
    """

    engine: str
    rows: tuple[Footprint, ...]
    missing: tuple[str, ...] = ()
    compared: bool = True

    def __post_init__(self) -> None:
        if not self.rows:
            raise ReportError("rows", expected="at least the reference", received="none")

    def __str__(self) -> str:
        return str(serving_table(self))


def serving_table(serving: Footprints, kept: str | None = None) -> Table[Row]:
    """Return the table of what the models would serve; ``kept`` is the name of the kept one."""
    columns = tuple(_columns(serving))
    rows = (
        Row(
            fmt.one_line(row.name),
            tuple(column.make(row) for column in columns),
            kept=row.name == kept,
        )
        for row in serving.rows
    )
    notes = (f"{row.name}: {note}" for row in serving.rows for note in row.notes)
    return table_of(
        columns,
        rows,
        title="Size and speed when it serves",
        caption=f"One example at a time on {fmt.one_line(serving.engine)}, in turns; a file is "
        "LiteRT's, in float32 unless a transform made it. Zeros are multiplied like other weights.",
        notes=tuple(map(fmt.one_line, (*notes, *serving.missing))),
    )


def _columns(serving: Footprints) -> Iterator[Column]:
    first = serving.rows[0] if serving.compared else None
    yield Column("Weights", "zeros", _weights)
    yield Column("Arithmetic an example", "", _arithmetic)
    yield Column("File, KiB", "", partial(_size, "kib", first))
    yield Column("Gzipped, KiB", "", partial(_size, "gzip_kib", first))
    yield Column("Sparse file, KiB", "", _sparse)
    yield Column("Latency, ms", "speed", _latency)


def _weights(row: Footprint) -> Cell:
    if row.parameters is None:
        return absent("the weights of this file were not counted")
    zeros = row.zeros / row.parameters if row.zeros and row.parameters else 0.0
    return Cell(f"{row.parameters:,}", fmt.share(zeros))


def _arithmetic(row: Footprint) -> Cell:
    if row.gflop_per_example is None:
        return absent("the arithmetic of this file was not counted")
    return Cell(flops_in_words(row.gflop_per_example))


def _size(name: str, first: Footprint | None, row: Footprint) -> Cell:
    kib = getattr(row, name)
    if first is None or row is first:
        return Cell(fmt.quantity(kib))
    smaller = getattr(first, name) / kib
    if not is_change(smaller):
        return Cell(fmt.quantity(kib), "the same")
    told = f"{fmt.factor(max(smaller, 1 / smaller))} {'smaller' if smaller > 1 else 'larger'}"
    return Cell(fmt.quantity(kib), told, size_tone(smaller))


def _sparse(row: Footprint) -> Cell:
    return figure(row.sparse_kib, "few zeros, or a file that is not in float32")


def _latency(row: Footprint) -> Cell:
    if row.latency_ms is None:
        return absent("the inputs leave a size open")
    return compared(row.latency_ms, row.latency)


def flops_in_words(gflop: float) -> str:
    """Return operations with three digits and the thousands that they count: 1.64 M."""
    for size, unit in ((1.0, "G"), (1e-3, "M"), (1e-6, "k")):
        if gflop >= size:
            return f"{gflop / size:.3g} {unit}"
    return f"{gflop * 1e9:.0f}"
