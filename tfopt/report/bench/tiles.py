"""The figures at the top of a bench report: before, after, and what changed.

Guarantees: a tile stands only where both figures were measured; a colour is the interval's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from tfopt.report import format as fmt
from tfopt.report.bench import words
from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.figures import example_ms, peak, phase_s
from tfopt.report.bench.variant import VariantReport
from tfopt.report.columns import Tone, size_tone
from tfopt.report.derived import is_change
from tfopt.report.summary import Tile


def tiles_of(report: BenchReport, subject: VariantReport | None) -> tuple[Tile, ...]:
    """The subject beside the reference; the reference's own figures where it is alone."""
    reference = report.reference
    if reference.status != "measured":
        return ()
    if subject is None:
        return _alone(reference)
    tiles = (
        _time(reference, subject, quick=report.asked.quick),
        _examples(reference, subject),
        _quality(subject),
        _peak("Peak GPU memory", "gpu_allocator_peak_mib", reference, subject),
        _peak("Peak host memory", "host_peak_mib", reference, subject),
        _first_step(reference, subject),
    )
    return tuple(tile for tile in tiles if tile is not None)[:5]


def _alone(reference: VariantReport) -> tuple[Tile, ...]:
    speed = reference.examples_per_s
    host = peak(reference, "host_peak_mib").mib
    gpu = peak(reference, "gpu_allocator_peak_mib").mib
    found = (
        ("Step, median", words.duration(reference.percentile_ms(50))),
        ("Step, p99", words.duration(reference.percentile_ms(99))),
        ("Throughput", None if speed is None else _per_second(speed)),
        ("Peak GPU memory", None if gpu is None else _mib(gpu)),
        ("Peak host memory", None if host is None else _mib(host)),
    )
    return tuple(Tile(label, "", text, "", "plain") for label, text in found if text is not None)


def _time(reference: VariantReport, subject: VariantReport, *, quick: bool) -> Tile | None:
    before, after = example_ms(reference), example_ms(subject)
    comparison = subject.against_reference
    if before is None or after is None or comparison is None:
        return None
    told = words.judged(comparison, quick=quick)
    if comparison.verdict in ("faster", "slower"):
        told = f"{words.times(comparison)}, {words.QUICK}" if quick else words.times(comparison)
    return Tile(
        "Time an example",
        words.duration(before),
        words.duration(after),
        told,
        words.tone(comparison),
    )


def _examples(reference: VariantReport, subject: VariantReport) -> Tile | None:
    before, after = reference.examples_per_s, subject.examples_per_s
    if before is None or after is None:
        return None
    batches = f"batch {reference.batch_size:,} to {subject.batch_size:,}"
    changed = "" if reference.batch_size == subject.batch_size else batches
    return Tile("Throughput", _per_second(before), _per_second(after), changed, "plain")


def _quality(subject: VariantReport) -> Tile | None:
    quality = subject.quality
    if quality is None:
        return None
    tone: Tone = "worse" if quality.lost else "plain"
    told = f"{fmt.signed_points(quality.points)} points"
    return Tile(
        words.short(quality.metric).capitalize(),
        fmt.share(statistics.mean(quality.reference)),
        fmt.share(statistics.mean(quality.variant)),
        f"{told}, lost" if quality.lost else told,
        tone,
    )


def _peak(label: str, name: str, reference: VariantReport, subject: VariantReport) -> Tile | None:
    before, after = peak(reference, name).mib, peak(subject, name).mib
    if not before or not after:
        return None
    return _ratio_tile(label, before, after, _mib, "smaller", "larger")


def _first_step(reference: VariantReport, subject: VariantReport) -> Tile | None:
    before, after = (phase_s(variant, "first_step_s") for variant in (reference, subject))
    if not before or not after:
        return None
    return _ratio_tile("First step", before, after, _seconds, "as fast", "as slow")


def _ratio_tile(
    label: str, before: float, after: float, write: Callable[[float], str], more: str, less: str
) -> Tile:
    ratio = before / after
    changed = fmt.times(ratio, more, less) if is_change(ratio, None) else "about the same"
    return Tile(label, write(before), write(after), changed, size_tone(ratio))


def _mib(value: float) -> str:
    return f"{fmt.quantity(value)} MiB"


def _seconds(value: float) -> str:
    return f"{fmt.quantity(value)} s"


def _per_second(value: float) -> str:
    return f"{fmt.quantity(value)}/s"
