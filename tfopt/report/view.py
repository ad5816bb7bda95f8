"""A report laid out in words: what each renderer shows, already formatted, in one place.

Guarantees: every text is clean (``tfopt.report.format.clean``) but not yet escaped, which only
a renderer can do; every "n/a" carries its reason and the number of its footnote; every row of
the report is there, measured or not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tfopt.report import bench_words as words
from tfopt.report import format as fmt
from tfopt.report.columns import Cell, Column, Footnotes, Heading, TableRow, columns_of, size_tone
from tfopt.report.footprint import Comparison, Footprint, Footprints, flops_in_words
from tfopt.report.schema import BASELINE, KEPT, Environment, Figures, Report, Row, compare
from tfopt.report.summary import Summary, summarise

# What the rows of a report would serve: size, arithmetic and latency, each in its own column.
#
# Guarantees: a latency has a colour only where its interval allows a verdict; nothing is said of
# the speed of zeros but what was measured.

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


STATUS_IN_WORDS = {
    "measured": "measured",
    "no_effect": "no effect",
    "failed": "failed",
    "refused": "refused",
    "interrupted": "interrupted",
}


@dataclass(frozen=True)
class RowView(TableRow):
    """One row: its cells, and what is told about it below the table."""

    transform: str
    chain: str
    epochs: tuple[tuple[str, str], ...]
    """Training seconds and test accuracy after each epoch."""


@dataclass(frozen=True)
class View:
    """A whole report, ready to be laid out."""

    title: str
    headed: str
    """When and where, in a line."""
    summary: Summary
    columns: tuple[Column, ...]
    rows: tuple[RowView, ...]
    footnotes: tuple[str, ...]
    """Footnote n is ``footnotes[n - 1]``."""
    serving: ServingView | None
    noise: str
    keep: str
    brought: str
    as_it_is: str
    """Told instead of these two where no link is worth keeping."""
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """Where the figures come from: name and value."""


def view_of(report: Report) -> View:
    """Formats everything in ``report``."""
    footnotes = Footnotes()
    columns = columns_of(report)
    rows = tuple(_view_of_row(row, report, columns, footnotes) for row in report.rows)
    advice = report.advice
    keep = "" if report.nothing_kept or advice is None else fmt.one_line(advice.keep)
    return View(
        title=fmt.one_line(report.title) or "Report",
        headed=_headed(report),
        summary=summarise(report),
        columns=columns,
        rows=rows,
        footnotes=footnotes.texts,
        serving=serving_view(report.serving, nothing_kept=report.nothing_kept),
        noise=_noise(report),
        keep=keep,
        brought=fmt.one_line(advice.brought) if advice else "",
        as_it_is=_as_it_is(advice.brought) if advice and report.nothing_kept else "",
        dropped=tuple(map(fmt.one_line, advice.dropped)) if advice else (),
        notes=tuple(map(fmt.clean, report.notes)),
        facts=_facts(report),
    )


def _as_it_is(brought: str) -> str:
    """That the job is best as it is, with the reason that stands in the advice, if one does."""
    reason = fmt.one_line(brought).removeprefix("nothing").removeprefix(": ")
    return f"{words.AS_IT_IS} ({reason})." if reason else f"{words.AS_IT_IS}."


def _view_of_row(
    row: Row, report: Report, columns: tuple[Column, ...], footnotes: Footnotes
) -> RowView:
    figures, baseline = row.figures, report.baseline
    cells: tuple[Cell, ...] = ()
    if figures is not None:
        against = None
        if baseline and figures is not baseline:
            against = compare(figures, baseline, same_training=row.same_training)
        cells = tuple(column.cell(figures, against, footnotes) for column in columns)
    return RowView(
        name=fmt.one_line(row.name),
        status=row.status,
        status_text=STATUS_IN_WORDS[row.status],
        measured=figures is not None,
        kept=row.name == KEPT and not report.nothing_kept,
        story=_story(row),
        transform=fmt.one_line(row.transform or ""),
        chain=fmt.one_line(row.chain),
        cells=cells,
        epochs=_epochs(figures),
    )


def _story(row: Row) -> tuple[str, ...]:
    """A transform without effect gives its own words as the reason: they are told once."""
    own = "the job as it is" if row.name == BASELINE else ""
    told = map(fmt.clean, (own, row.reason or "", *row.changed))
    return tuple(dict.fromkeys(text for text in told if text))


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


def _headed(report: Report) -> str:
    environment = report.environment
    where = _gpu_names(environment) or f"{environment.cpu}, no GPU"
    parts = (fmt.moment(report.created), where, report.data)
    return " \N{MIDDLE DOT} ".join(fmt.one_line(part) for part in parts if part)


def _facts(report: Report) -> tuple[tuple[str, str], ...]:
    environment = report.environment
    facts = {
        "Command": report.command,
        "Measured": fmt.moment(report.created),
        "Data": report.data or "not loaded yet",
        "Machine": f"{environment.cpu}, {fmt.count(environment.cpu_count, 'CPU')}, "
        f"{environment.memory_gib:g} GiB, {environment.platform}",
        "GPU": _gpus(environment),
        "Versions": f"tfopt {environment.tfopt}, TensorFlow {environment.tensorflow}, "
        f"Keras {environment.keras}, NumPy {environment.numpy}, Python {environment.python}",
        "Schema": report.schema,
    }
    return tuple((name, fmt.one_line(value)) for name, value in facts.items())


def _gpus(environment: Environment) -> str:
    if not environment.gpus:
        return f"none: {environment.no_gpu_reason}"
    return f"{_gpu_names(environment)}, driver {environment.driver or 'unknown'}"


def _gpu_names(environment: Environment) -> str:
    """Equal ones counted: 8 x NVIDIA H100."""
    names = Counter(environment.gpus)
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in names.items())
