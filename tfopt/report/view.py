"""A report laid out in words: what each renderer shows, already formatted, in one place.

Guarantees: every text is clean (``tfopt.report.format.clean``) but not yet escaped, which only
a renderer can do; every "n/a" carries its reason and the number of its footnote; every row of
the report is there, measured or not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench import words
from tfopt.report.columns import Cell, Column, Footnotes, TableRow, columns_of
from tfopt.report.derived import compare
from tfopt.report.figures import Figures
from tfopt.report.schema import BASELINE, KEPT, Environment, Report, Row
from tfopt.report.serving import ServingView, serving_view
from tfopt.report.summary import Summary, summarise

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
    rows = tuple(_row(row, report, columns, footnotes) for row in report.rows)
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


def _row(row: Row, report: Report, columns: tuple[Column, ...], footnotes: Footnotes) -> RowView:
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
