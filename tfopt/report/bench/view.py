"""A bench report laid out in words: what each renderer shows, formatted once.

Guarantees: every text is clean (``tfopt.report.format.clean``) but not yet escaped, which only
a renderer can do; every variant is there, measured or not; a quick measurement is marked in the
title, the headline and at every comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench import words
from tfopt.report.bench.columns import Column, columns_of
from tfopt.report.bench.document import BenchReport, Kind, Recommendation
from tfopt.report.bench.facts import facts_of, headed
from tfopt.report.bench.rows import RowView, row_of
from tfopt.report.bench.summary import summarise
from tfopt.report.columns import Footnotes
from tfopt.report.schema import PLAIN
from tfopt.report.summary import Summary

_CAPTIONS: dict[Kind, str] = {
    "prefixes": "Each row adds one link of the chain to those before it.",
    "ablation": "Each row leaves one link of the chain out.",
    "pair": "Two jobs, measured in the same rounds.",
    "single": "One job alone.",
}


@dataclass(frozen=True)
class View:
    """A whole report, ready to be laid out."""

    title: str
    headed: str
    """When and where, in a line."""
    quick: str
    """A mark for every heading; empty unless the measurement was quick."""
    summary: Summary
    caption: str
    """What the rows of the table are."""
    columns: tuple[Column, ...]
    rows: tuple[RowView, ...]
    footnotes: tuple[str, ...]
    """Footnote n is ``footnotes[n - 1]``."""
    left_out: tuple[str, ...]
    """Columns for which nobody has a figure, with the reason."""
    method: str
    """How the comparisons were made."""
    keep: str
    brought: str
    as_it_is: str
    """Told instead of these two where no link is worth keeping."""
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """Where the figures come from: name and value."""


def view_of(report: BenchReport) -> View:
    """Formats everything in ``report``."""
    footnotes = Footnotes()
    columns = columns_of(report)
    rows = tuple(row_of(report, variant, columns.shown, footnotes) for variant in report.variants)
    quick = f" ({words.QUICK})" if report.asked.quick else ""
    keep, brought = _kept(report)
    recommended = report.recommendation
    return View(
        title=(fmt.one_line(report.title) or "Benchmark") + quick,
        headed=headed(report),
        quick=words.QUICK if report.asked.quick else "",
        summary=summarise(report),
        caption=_caption(report),
        columns=columns.shown,
        rows=rows,
        footnotes=footnotes.texts,
        left_out=columns.left_out,
        method=_method(report),
        keep=keep,
        brought=brought,
        as_it_is=_as_it_is(recommended),
        dropped=tuple(map(fmt.one_line, recommended.dropped)) if recommended else (),
        notes=tuple(map(fmt.clean, report.notes)),
        facts=facts_of(report),
    )


def _caption(report: BenchReport) -> str:
    told = [_CAPTIONS[report.asked.kind]]
    last = report.variants[-1]
    if report.asked.kind != "pair" and last is not report.reference and last.transform is None:
        told.append("The last is the chain to keep, in further rounds beside the first.")
    if report.asked.quick:
        told.append("A quick measurement.")
    return " ".join(told)


def _as_it_is(recommended: Recommendation | None) -> str:
    """Nothing where the intervals may yet decide for a link."""
    if recommended is None or recommended.keep != PLAIN or recommended.undecided:
        return ""
    return f"{words.AS_IT_IS}."


def _kept(report: BenchReport) -> tuple[str, str]:
    """The chain to keep and what it brought; nothing where its quality is lost."""
    recommended = report.recommendation
    if recommended is None or recommended.keep in (None, PLAIN):
        return "", ""
    measured = [variant for variant in report.measured if variant.chain == recommended.keep]
    if any(variant.quality is not None and variant.quality.lost for variant in measured):
        return "", ""
    return fmt.one_line(recommended.keep), fmt.one_line(recommended.brought)


def _method(report: BenchReport) -> str:
    asked = report.asked
    least, most = asked.rounds_at_least, asked.rounds_at_most
    until = f", until the interval is within \N{PLUS-MINUS SIGN}{words.percent(asked.half_width)}"
    rounds = str(least) if least == most else f"{least} to {most}"
    told = (
        f"Blocks of {fmt.count(asked.windows, 'window')} of about "
        f"{words.duration(asked.window_ms)}, each block a fresh process after a warm-up of "
        f"{fmt.quantity(asked.warm_up_s)} s, in random rounds (seed {asked.seed}), "
        f"{rounds} of them{until if least < most else ''}. Percentiles are over windows, each the "
        "mean of its steps. A ratio is the mean of those of the rounds: it need not be that of "
        "two medians."
    )
    return f"Quick: {told[0].lower()}{told[1:]}" if asked.quick else told
