"""Lay a report out in words: what each renderer shows, already formatted, in one place.

Every text is clean (:func:`tfopt.report.format.clean`) but not yet escaped, which only a renderer
can do. Every row of the report is there, measured or not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfopt.report import format as fmt
from tfopt.report.columns import (
    Cell,
    Column,
    Footnotes,
    Heading,
    TableRow,
    absent,
    columns_of,
    size_tone,
    verdict_tone,
)
from tfopt.report.footprint import Comparison, Footprint, Footprints, flops_in_words
from tfopt.report.schema import BASELINE, KEPT, Environment, Figures, Report, Row, compare
from tfopt.report.summary import Summary, summarise

if TYPE_CHECKING:
    from tfopt.report.bench.bench_report import Provenance

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


@dataclass(frozen=True)
class ChangeRow(TableRow):
    """A row that adds a transform to a chain."""

    transform: str
    chain: str


@dataclass(frozen=True)
class RowView(ChangeRow):
    """A row of a training's report."""

    epochs: tuple[tuple[str, str], ...]
    """Training seconds and test accuracy after each epoch."""


@dataclass(frozen=True)
class ReportView:
    """What the views of a training and of a benchmark have in common."""

    title: str
    headed: str
    """When and where, in a line."""
    summary: Summary
    columns: tuple[Column, ...]
    footnotes: tuple[str, ...]
    """Footnote n is ``footnotes[n - 1]``."""
    keep: str
    brought: str
    as_it_is: str
    """Shown instead of these two where no link is worth keeping."""
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """Where the figures come from: name and value."""


@dataclass(frozen=True)
class View(ReportView):
    """The report of a training, ready to be laid out."""

    rows: tuple[RowView, ...]
    serving: ServingView | None
    noise: str


def view_of(report: Report) -> View:
    """Return everything in ``report``, formatted."""
    footnotes = Footnotes()
    columns = columns_of(report)
    rows = tuple(_row(row, report, columns, footnotes) for row in report.rows)
    advice = report.advice
    return View(
        title=fmt.one_line(report.title) or "Report",
        headed=headed(report.created, report.environment, report.data),
        summary=summarise(report),
        columns=columns,
        rows=rows,
        footnotes=footnotes.texts,
        serving=serving_view(report.serving, nothing_kept=report.nothing_kept),
        noise=_noise(report),
        keep="" if report.nothing_kept or advice is None else fmt.one_line(advice.keep),
        brought=fmt.one_line(advice.brought) if advice else "",
        as_it_is=_as_it_is(advice.brought) if advice and report.nothing_kept else "",
        dropped=tuple(map(fmt.one_line, advice.dropped)) if advice else (),
        notes=tuple(map(fmt.clean, report.notes)),
        facts=_facts(report),
    )


def headed(created: str, machine: Environment | Provenance, data: str) -> str:
    """Return when, on what and with which data, in a line."""
    where = gpu_names(machine) or f"{machine.cpu}, no GPU"
    parts = (fmt.moment(created), where, data)
    return " \N{MIDDLE DOT} ".join(fmt.one_line(part) for part in parts if part)


def gpu_names(machine: Environment | Provenance) -> str:
    """Return the names of the GPUs, equal ones counted: 8 x NVIDIA H100."""
    names = Counter(machine.gpus)
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in names.items())


def machine_in_words(machine: Environment | Provenance) -> str:
    """Return CPU, cores, memory and platform."""
    cores = fmt.count(machine.cpu_count, "CPU")
    return f"{machine.cpu}, {cores}, {machine.memory_gib:g} GiB, {machine.platform}"


def story_of(*texts: str | None) -> tuple[str, ...]:
    """Return what happened to a row, each text once: one without effect gives its own as reason."""
    return tuple(dict.fromkeys(text for each in texts if (text := fmt.clean(each or ""))))


def _as_it_is(brought: str) -> str:
    reason = fmt.one_line(brought).removeprefix("nothing").removeprefix(": ")
    return f"{fmt.AS_IT_IS} ({reason})." if reason else f"{fmt.AS_IT_IS}."


def _row(row: Row, report: Report, columns: tuple[Column, ...], footnotes: Footnotes) -> RowView:
    figures, baseline = row.figures, report.baseline
    cells: tuple[Cell, ...] = ()
    if figures is not None:
        against = None
        if baseline and figures is not baseline:
            against = compare(figures, baseline, same_training=row.same_training)
        cells = tuple(footnotes.numbered(column.make(figures, against)) for column in columns)
    plain = "the job as it is" if row.name == BASELINE else ""
    return RowView(
        name=fmt.one_line(row.name),
        status=row.status,
        kept=row.name == KEPT and not report.nothing_kept,
        cells=cells,
        story=story_of(plain, row.reason, *row.changed),
        transform=fmt.one_line(row.transform or ""),
        chain=fmt.one_line(row.chain),
        epochs=_epochs(figures),
    )


def _epochs(figures: Figures | None) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            fmt.quantity(epoch.train_s),
            fmt.NOT_AVAILABLE if epoch.test_accuracy is None else fmt.share(epoch.test_accuracy),
        )
        for epoch in (figures.epochs if figures else ())
    )


def _noise(report: Report) -> str:
    if report.noise is None:
        return "The baseline was not measured twice: how far two equal runs differ is unknown."
    return (
        f"Two runs of the same baseline differ by {fmt.share(report.noise.ratio)} in training "
        "time: a smaller difference says nothing."
    )


def _facts(report: Report) -> tuple[tuple[str, str], ...]:
    environment = report.environment
    gpus = f"{gpu_names(environment)}, driver {environment.driver or 'unknown'}"
    facts = {
        "Command": report.command,
        "Measured": fmt.moment(report.created),
        "Data": report.data or "not loaded yet",
        "Machine": machine_in_words(environment),
        "GPU": gpus if environment.gpus else f"none: {environment.no_gpu_reason}",
        "Versions": f"tfopt {environment.tfopt}, TensorFlow {environment.tensorflow}, "
        f"Keras {environment.keras}, NumPy {environment.numpy}, Python {environment.python}",
        "Schema": report.schema,
    }
    return tuple((name, fmt.one_line(value)) for name, value in facts.items())


def serving_view(serving: Footprints | None, *, nothing_kept: bool = False) -> ServingView | None:
    """Return the table of what the rows would serve; None where nothing was compared."""
    if serving is None:
        return None
    footnotes = Footnotes()
    kept = None if nothing_kept else KEPT
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
