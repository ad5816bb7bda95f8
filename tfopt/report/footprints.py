"""Hold what models weigh and how fast they answer when they serve, and lay it out in a table.

What was not measured is None, with its reason in ``notes``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tfopt.report import format as fmt
from tfopt.report.statistics import Comparison
from tfopt.report.strict import AboveZero
from tfopt.report.table import Cell, Column, Table, absent, figure, is_change, timed

_NOT_SPARSE = "few zeros, or a file that is not in float32"


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
        assert self.rows, "at least the reference"

    def __str__(self) -> str:
        return str(serving_table(self))


def serving_table(serving: Footprints, kept: str | None = None) -> Table:
    """Return the table of what the models would serve; ``kept`` is the name of the kept one."""
    first = serving.rows[0] if serving.compared else None
    columns = (
        Column("Weights", "zeros", _weights),
        Column("Arithmetic an example", "", _arithmetic),
        Column("File, KiB", "", lambda row: _size(row, first, "kib")),
        Column("Gzipped, KiB", "", lambda row: _size(row, first, "gzip_kib")),
        Column("Sparse file, KiB", "", lambda row: figure(row.sparse_kib, _NOT_SPARSE)),
        Column("Latency, ms", "speed", _latency),
    )
    rows = ((fmt.one_line(row.name), row) for row in serving.rows)
    notes = (f"{row.name}: {note}" for row in serving.rows for note in row.notes)
    return replace(
        Table.of(columns, rows, kept=kept and fmt.one_line(kept)),
        title="Serving: size and latency",
        caption=f"One example at a time on {fmt.one_line(serving.engine)}, in turns; a file is "
        "LiteRT's, in float32 unless a transform made it. Zeros are multiplied like other weights.",
        notes=tuple(map(fmt.one_line, (*notes, *serving.missing))),
    )


def _weights(row: Footprint) -> Cell:
    if row.parameters is None:
        return absent("the weights of this file were not counted")
    zeros = row.zeros / row.parameters if row.zeros and row.parameters else 0.0
    return Cell(f"{row.parameters:,}", fmt.share(zeros))


def _arithmetic(row: Footprint) -> Cell:
    if row.gflop_per_example is None:
        return absent("the arithmetic of this file was not counted")
    return Cell(flops_in_words(row.gflop_per_example))


def _size(row: Footprint, reference: Footprint | None, name: str) -> Cell:
    """Return a size, beside how much smaller or larger it is than the reference's."""
    kib = getattr(row, name)
    if reference is None or row is reference:
        return Cell(fmt.quantity(kib))
    smaller = getattr(reference, name) / kib
    if not is_change(smaller):
        return Cell(fmt.quantity(kib), "the same")
    if smaller > 1:
        return Cell(fmt.quantity(kib), f"{fmt.factor(smaller)} smaller", "better")
    return Cell(fmt.quantity(kib), f"{fmt.factor(1 / smaller)} larger", "worse")


def _latency(row: Footprint) -> Cell:
    if row.latency_ms is None:
        return absent("the inputs leave a size open")
    return timed(row.latency_ms, row.latency)


def flops_in_words(gflop: float) -> str:
    """Return operations with three digits and the thousands that they count: 1.64 M."""
    for size, unit in ((1.0, "G"), (1e-3, "M"), (1e-6, "k")):
        if gflop >= size:
            return f"{gflop / size:.3g} {unit}"
    return f"{gflop * 1e9:.0f}"
