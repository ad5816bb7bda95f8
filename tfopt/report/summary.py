"""Sum a report up in ten seconds: one sentence, and a few figures before and after.

The sentence claims a change only beyond the noise. When the kept chain was not measured it says so
instead of speaking for another row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tfopt.report import format as fmt
from tfopt.report.columns import Tone, accuracy_tone, size_tone, time_tone, verdict_tone
from tfopt.report.footprint import Footprint
from tfopt.report.schema import (
    BASELINE,
    KEPT,
    Comparison,
    Figures,
    Noise,
    Report,
    Row,
    compare,
    is_accuracy_change,
    is_change,
    seconds_to_accuracy,
)

if TYPE_CHECKING:
    from tfopt.report.bench.bench_report import VariantReport


@dataclass(frozen=True)
class Tile:
    """One figure before and after, with units."""

    label: str
    before: str
    after: str
    change: str
    tone: Tone


@dataclass(frozen=True)
class Summary:
    """The top of a report."""

    headline: str
    warning: str
    """What a reader must know first: incomplete, or rows that failed."""
    subject: str
    """The row that the tiles compare with the baseline; empty without tiles."""
    tiles: tuple[Tile, ...]


def summarise(report: Report) -> Summary:
    """Return the kept chain, or the last row measured, compared with the baseline."""
    warning = _warning(report)
    subject, baseline = _subject(report), report.baseline
    if subject is None or subject.figures is None or baseline is None:
        return Summary(_without_figures(report), warning, "", ())
    served = _served(report, subject)
    serves_kib = None if served is None else served[0].kib
    against = compare(
        subject.figures,
        baseline,
        same_training=subject.same_training,
        baseline_serves_kib=serves_kib,
    )
    headline = _headline(report, subject, against)
    tiles = _tiles(subject, baseline, against, report.noise) + _latency_tile(served)
    if report.nothing_kept:
        headline = f"The job is best left as it is. {headline}"
        tiles = tuple(map(_without_praise, tiles))
    return Summary(headline, warning, fmt.one_line(subject.name), tiles)


def _subject(report: Report) -> Row | None:
    if report.kept is not None:
        return report.kept
    measured = [row for row in report.rows if row.name != BASELINE and row.figures is not None]
    return measured[-1] if measured else None


def _warning(report: Report) -> str:
    parts = []
    if not report.complete:
        parts.append(
            f"Incomplete: the measurement stopped after {fmt.count(len(report.rows), 'row')}."
        )
    return " ".join([*parts, *failures(report.rows)])


def failures(rows: Iterable[Row | VariantReport]) -> list[str]:
    """Return the sentence that names the rows that failed, if any did."""
    failed = [fmt.one_line(row.name) for row in rows if row.status == "failed"]
    return [f"Failed: {', '.join(failed)}."] if failed else []


def _without_figures(report: Report) -> str:
    if report.kept is not None:
        return f"The kept chain was not measured: {fmt.one_line(report.kept.reason or '')}"
    if report.baseline is None:
        return "Nothing was measured."
    return "Only the baseline was measured: there is nothing to compare it with."


def _headline(report: Report, subject: Row, against: Comparison) -> str:
    who = f"The last row measured ({fmt.one_line(subject.name)})"
    if subject.name == KEPT:
        who = "What was tried as a whole" if report.nothing_kept else "The kept chain"
    alike = "leaves the training as it is"
    time = alike if subject.same_training else _time_in_words(against.train_speedup, report.noise)
    sentence = f"{who} {time}"
    if against.accuracy_points is not None:
        sentence += f" and {_accuracy_in_words(against.accuracy_points)}"
    shrink = against.artefact_shrink or against.model_gzip_shrink
    if shrink and is_change(shrink, None):
        what = "the file for serving is" if against.artefact_shrink else "the gzipped model is"
        sentence += f"; {what} {fmt.times(shrink, 'smaller', 'larger')}"
    return f"{sentence}."


def _time_in_words(speedup: float | None, noise: Noise | None) -> str:
    if speedup is None or not is_change(speedup, noise):
        return "trains no faster and no slower beyond the noise"
    return f"trains {fmt.times(speedup, 'as fast', 'as slow')} at equal epochs"


def _accuracy_in_words(points: float) -> str:
    if not is_accuracy_change(points):
        return f"keeps the test accuracy ({fmt.signed_points(points)} points)"
    verb = "gains" if points > 0 else "loses"
    return f"{verb} {fmt.points(points)} of test accuracy"


def _without_praise(tile: Tile) -> Tile:
    """Return the tile without a gain's colour: what is not kept is no gain."""
    return replace(tile, tone="plain") if tile.tone == "better" else tile


def _tiles(
    subject: Row, baseline: Figures, against: Comparison, noise: Noise | None
) -> tuple[Tile, ...]:
    figures = subject.figures
    assert figures is not None
    timed = (
        quantity_tile(
            "Training time",
            (baseline.train_s, figures.train_s, "s"),
            _times(against.train_speedup, "as fast", "as slow"),
            time_tone(against.train_speedup, noise),
        ),
        _accuracy_time_tile(figures, baseline, noise),
    )
    tiles = (
        *(() if subject.same_training else timed),
        _accuracy_tile(figures, baseline, against),
        _size_tile(figures, baseline, against),
        quantity_tile(
            "Peak GPU memory",
            (baseline.peak_gpu_mib, figures.peak_gpu_mib, "MiB"),
            _times(against.gpu_shrink, "smaller", "larger"),
            size_tone(against.gpu_shrink),
        ),
    )
    return tuple(tile for tile in tiles if tile is not None)


def quantity_tile(
    label: str, values: tuple[float | None, float | None, str], change: str, tone: Tone
) -> Tile | None:
    """Return a tile of two quantities and their unit; None where one is missing."""
    before, after, unit = values
    if before is None or after is None:
        return None
    return Tile(
        label, f"{fmt.quantity(before)} {unit}", f"{fmt.quantity(after)} {unit}", change, tone
    )


def _accuracy_time_tile(figures: Figures, baseline: Figures, noise: Noise | None) -> Tile | None:
    label = "Time to the baseline's accuracy"
    before = seconds_to_accuracy(baseline, baseline.test_accuracy)
    after = seconds_to_accuracy(figures, baseline.test_accuracy)
    if not before:
        return None
    if not after:
        return Tile(label, f"{fmt.quantity(before)} s", "not reached", "", "worse")
    change = _times(before / after, "as fast", "as slow")
    return quantity_tile(label, (before, after, "s"), change, time_tone(before / after, noise))


def _accuracy_tile(figures: Figures, baseline: Figures, against: Comparison) -> Tile | None:
    points = against.accuracy_points
    if points is None or figures.test_accuracy is None or baseline.test_accuracy is None:
        return None
    return Tile(
        "Test accuracy",
        fmt.share(baseline.test_accuracy),
        fmt.share(figures.test_accuracy),
        f"{fmt.signed_points(points)} points",
        accuracy_tone(points),
    )


def _size_tile(figures: Figures, baseline: Figures, against: Comparison) -> Tile | None:
    """Return the tile of the file for serving where there is one, else of the gzipped model."""
    shrink = against.artefact_shrink
    if shrink is None:
        return quantity_tile(
            "Gzipped model",
            (baseline.model_gzip_kib, figures.model_gzip_kib, "KiB"),
            _times(against.model_gzip_shrink, "smaller", "larger"),
            size_tone(against.model_gzip_shrink),
        )
    accuracy = figures.artefact_accuracy
    accurate = "" if accuracy is None else f" ({fmt.share(accuracy)} accurate)"
    return quantity_tile(
        f"Size to serve{accurate}",
        (*against.to_serve_kib, "KiB"),
        _times(shrink, "smaller", "larger"),
        size_tone(shrink),
    )


def _served(report: Report, subject: Row) -> tuple[Footprint, Footprint] | None:
    """Return what the baseline and the subject serve, maybe under the name of an equal row."""
    served = {} if report.serving is None else {row.name: row for row in report.serving.rows}
    equal = [row.name for row in report.rows if row.figures == subject.figures]
    after = next((served[name] for name in equal if name in served), None)
    first = served.get(BASELINE)
    return None if first is None or after is None else (first, after)


def _latency_tile(served: tuple[Footprint, Footprint] | None) -> tuple[Tile, ...]:
    if served is None:
        return ()
    before, after = (row.latency_ms for row in served)
    against = served[1].latency
    if before is None or after is None or against is None:
        return ()
    certain = against.verdict in ("faster", "slower")
    change = fmt.speed(against) if certain else against.verdict
    tone = verdict_tone(against)
    tile = Tile("Latency to serve", fmt.duration(before), fmt.duration(after), change, tone)
    return (tile,)


def _times(ratio: float | None, more: str, less: str) -> str:
    return fmt.times(ratio, more, less) if ratio else ""
