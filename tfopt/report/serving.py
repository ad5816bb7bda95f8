"""What the rows of a report would serve: size, arithmetic and latency, each in its own column.

Guarantees: a latency has a colour only where its interval allows a verdict; nothing is said of
the speed of zeros but what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench import words
from tfopt.report.bench.comparison import Comparison
from tfopt.report.columns import Cell, Footnotes, Heading, TableRow, size_tone
from tfopt.report.footprint import Footprint, Footprints, flops_in_words
from tfopt.report.schema import KEPT

_TITLE = "Size and speed when it serves"
COLUMNS = (
    Heading("Weights", "zeros"),
    Heading("Arithmetic an example", ""),
    Heading("File, KiB", "times smaller"),
    Heading("Gzipped, KiB", "times smaller"),
    Heading("Sparse file, KiB", ""),
    Heading("Latency, ms", "of the first row's"),
)
GPU_COLUMN = Heading("GPU, ms", "of the first row's")


@dataclass(frozen=True)
class ServingView:
    """A table of its own, with what is to be said below it."""

    title: str
    told: str
    columns: tuple[Heading, ...]
    rows: tuple[TableRow, ...]
    footnotes: tuple[str, ...]
    notes: tuple[str, ...]


def serving_view(serving: Footprints | None, *, nothing_kept: bool = False) -> ServingView | None:
    """The table; None where nothing was compared."""
    if serving is None:
        return None
    footnotes = Footnotes()
    first = serving.rows[0] if serving.compared else None
    gpu = serving.gpu is not None
    kept = None if nothing_kept else KEPT
    rows = tuple(_row(row, first, footnotes, gpu, row.name == kept) for row in serving.rows)
    notes = tuple(f"{row.name}: {note}" for row in serving.rows for note in row.notes)
    return ServingView(
        title=_TITLE,
        told=f"One example at a time on {fmt.one_line(serving.engine)}, in turns; a file is "
        "LiteRT's, in float32 unless a transform made it. Zeros are multiplied like other weights."
        + (f" On the GPU: {fmt.one_line(serving.gpu)}." if serving.gpu else ""),
        columns=(*COLUMNS, GPU_COLUMN) if gpu else COLUMNS,
        rows=rows,
        footnotes=footnotes.texts,
        notes=tuple(map(fmt.one_line, (*notes, *serving.missing))),
    )


def _row(
    row: Footprint, first: Footprint | None, footnotes: Footnotes, gpu: bool, kept: bool
) -> TableRow:
    cells = (
        _weights(row),
        _or_reason(
            None if row.gflop_per_example is None else flops_in_words(row.gflop_per_example),
            "the arithmetic of this file was not counted",
        ),
        _size(row.kib, first.kib if first and row is not first else None),
        _size(row.gzip_kib, first.gzip_kib if first and row is not first else None),
        _or_reason(
            None if row.sparse_kib is None else fmt.quantity(row.sparse_kib),
            "few zeros, or a file that is not in float32",
        ),
        _latency(row.latency_ms, row.latency, "the inputs leave a size open"),
        *([_latency(row.gpu_ms, row.gpu_latency, "not run on the GPU")] if gpu else ()),
    )
    return TableRow(
        name=fmt.one_line(row.name),
        status="measured",
        status_text="measured",
        measured=True,
        kept=kept,
        cells=tuple(map(footnotes.numbered, cells)),
        story=(),
    )


def _weights(row: Footprint) -> Cell:
    if row.parameters is None:
        return _or_reason(None, "the weights of this file were not counted")
    zeros = row.zeros / row.parameters if row.zeros and row.parameters else 0.0
    return Cell(f"{row.parameters:,}", fmt.share(zeros))


def _size(kib: float, first: float | None) -> Cell:
    if first is None:
        return Cell(fmt.quantity(kib))
    return Cell(fmt.quantity(kib), fmt.factor(first / kib), size_tone(first / kib))


def _latency(milliseconds: float | None, against: Comparison | None, reason: str) -> Cell:
    if milliseconds is None:
        return _or_reason(None, reason)
    if against is None:
        return Cell(fmt.quantity(milliseconds))
    return Cell(fmt.quantity(milliseconds), words.interval(against), words.tone(against))


def _or_reason(text: str | None, reason: str) -> Cell:
    return Cell(fmt.NOT_AVAILABLE, reason=reason) if text is None else Cell(text)
