"""Lay out in words what variants would serve: sizes, arithmetic and latency, in a table."""

from __future__ import annotations

from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.columns import (
    Cell,
    Footnotes,
    Heading,
    TableRow,
    absent,
    size_tone,
    verdict_tone,
)
from tfopt.report.footprint import Comparison, Footprint, Footprints, flops_in_words

_SERVING_COLUMNS = (
    Heading("Weights", "zeros"),
    Heading("Arithmetic an example", ""),
    Heading("File, KiB", "times smaller"),
    Heading("Gzipped, KiB", "times smaller"),
    Heading("Sparse file, KiB", ""),
    Heading("Latency, ms", "speed"),
)
_GPU_COLUMN = Heading("GPU, ms", "speed")


@dataclass(frozen=True)
class ServingView:
    """The table of what the rows would serve, with what is to be said below it."""

    title: str
    caption: str
    columns: tuple[Heading, ...]
    rows: tuple[TableRow, ...]
    footnotes: tuple[str, ...]
    notes: tuple[str, ...]


def serving_view(serving: Footprints | None, kept: str | None) -> ServingView | None:
    """Return the table of what the variants would serve; None where nothing was compared.

    ``kept`` is the name of the variant that is kept.
    """
    if serving is None:
        return None
    footnotes = Footnotes()
    rows = tuple(
        TableRow(
            name=fmt.one_line(row.name),
            status="measured",
            kept=row.name == kept,
            cells=tuple(map(footnotes.numbered, _serving_cells(row, serving))),
            story=(),
        )
        for row in serving.rows
    )
    notes = tuple(f"{row.name}: {note}" for row in serving.rows for note in row.notes)
    return ServingView(
        title="Size and speed when it serves",
        caption=f"One example at a time on {fmt.one_line(serving.engine)}, in turns; a file is "
        "LiteRT's, in float32 unless a transform made it. Zeros are multiplied like other weights."
        + (f" On the GPU: {fmt.one_line(serving.gpu)}." if serving.gpu else ""),
        columns=_SERVING_COLUMNS if serving.gpu is None else (*_SERVING_COLUMNS, _GPU_COLUMN),
        rows=rows,
        footnotes=footnotes.texts,
        notes=tuple(map(fmt.one_line, (*notes, *serving.missing))),
    )


def _serving_cells(row: Footprint, serving: Footprints) -> tuple[Cell, ...]:
    first = serving.rows[0] if serving.compared and row is not serving.rows[0] else None
    flops, sparse = row.gflop_per_example, row.sparse_kib
    cells = (
        _weights(row),
        absent("the arithmetic of this file was not counted")
        if flops is None
        else Cell(flops_in_words(flops)),
        _size(row.kib, first.kib if first else None),
        _size(row.gzip_kib, first.gzip_kib if first else None),
        absent("few zeros, or a file that is not in float32")
        if sparse is None
        else Cell(fmt.quantity(sparse)),
        _latency(row.latency_ms, row.latency, "the inputs leave a size open"),
    )
    if serving.gpu is None:
        return cells
    return (*cells, _latency(row.gpu_ms, row.gpu_latency, "not run on the GPU"))


def _weights(row: Footprint) -> Cell:
    if row.parameters is None:
        return absent("the weights of this file were not counted")
    zeros = row.zeros / row.parameters if row.zeros and row.parameters else 0.0
    return Cell(f"{row.parameters:,}", fmt.share(zeros))


def _size(kib: float, first: float | None) -> Cell:
    if first is None:
        return Cell(fmt.quantity(kib))
    return Cell(fmt.quantity(kib), fmt.factor(first / kib), size_tone(first / kib))


def _latency(milliseconds: float | None, against: Comparison | None, reason: str) -> Cell:
    if milliseconds is None:
        return absent(reason)
    if against is None:
        return Cell(fmt.quantity(milliseconds))
    return Cell(
        fmt.quantity(milliseconds),
        fmt.speed_and_interval(against),
        verdict_tone(against),
        badge=against.verdict,
    )
