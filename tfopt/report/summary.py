"""Sum a bench report up in ten seconds: one sentence, a few figures before and after.

The verdict is the interval's, and a variant that loses quality is never recommended.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench_figures import (
    example_ms,
    kept,
    lost,
    middle_training,
    peak,
    phase_s,
    served_by,
    target,
    to_target_s,
    trained_whole,
)
from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.columns import Tone, is_change, size_tone, verdict_tone
from tfopt.report.footprint import SAME_WITHIN, Comparison
from tfopt.report.training_view import how_often

_MOST_TILES = 6
_QUICK_STEPS = "Steps were measured quickly: the whole trainings are what counts."
_QUICK = (
    "Quick: less was measured than by default. The figures show a direction; they are not for "
    "publishing."
)


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
    """The variant that the tiles compare with the reference; empty without tiles."""
    tiles: tuple[Tile, ...]


def summarise(report: BenchReport) -> Summary:
    """Return the variant that matters most, compared with the reference."""
    subject = _subject(report)
    headline = _headline(report, subject)
    if report.asked.quick and not (trained_whole(report) and subject and subject.trainings):
        headline = f"Quick measurement: {headline}"
    return Summary(
        headline=headline,
        warning=" ".join(_warnings(report)),
        subject=fmt.one_line(subject.name) if subject else "",
        tiles=_tiles(report, subject),
    )


def _subject(report: BenchReport) -> VariantReport | None:
    """Return the kept chain, else what this kind of measurement is about."""
    recommended = kept(report)
    if recommended is not None:
        return recommended
    others = [variant for variant in report.measured if variant is not report.reference]
    if not others:
        return None
    compared = [variant for variant in others if variant.against_reference is not None]
    if report.asked.kind == "ablation" and compared:
        return max(compared, key=_ratio)
    return others[-1]


def _ratio(variant: VariantReport) -> float:
    return variant.against_reference.ratio if variant.against_reference else 0.0


def _warnings(report: BenchReport) -> list[str]:
    quick = _QUICK_STEPS if trained_whole(report) else _QUICK
    warnings = [quick] if report.asked.quick else []
    if not report.complete:
        warnings.append("Incomplete: the measurement stopped before its end.")
    failed = [fmt.one_line(each.name) for each in report.variants if each.status == "failed"]
    if failed:
        warnings.append(f"Failed: {', '.join(failed)}.")
    losing = [
        f"{fmt.one_line(variant.name)} ({fmt.signed_points(variant.quality.points)} points)"
        for variant in report.variants
        if variant.quality is not None and variant.quality.lost
    ]
    if losing:
        chains = "chains up to " if report.asked.kind == "prefixes" else ""
        warnings.append(f"Quality is lost, not recommended: {chains}{', '.join(losing)}.")
    blocks = [block for variant in report.variants for block in variant.blocks]
    invalid = sum(block.invalid is not None for block in blocks)
    if invalid:
        warnings.append(f"Invalid blocks, not counted: {invalid} of {len(blocks)}.")
    return warnings


def _tiles(report: BenchReport, subject: VariantReport | None) -> tuple[Tile, ...]:
    """Return the subject beside the reference, or the reference's own figures where it is alone."""
    reference = report.reference
    if reference.status != "measured":
        return ()
    if subject is None:
        return _alone(reference)
    trained = trained_whole(report) and bool(subject.trainings)
    tiles = (
        *(_of_trainings(report, subject) if trained else ()),
        _time(reference, subject, quick=report.asked.quick),
        _examples(reference, subject),
        _quality(subject),
        _peak("Peak GPU memory", "gpu_allocator_peak_mib", reference, subject),
        _peak("Peak host memory", "host_peak_mib", reference, subject),
        _first_step(reference, subject),
    )
    return tuple(tile for tile in tiles if tile is not None)[:_MOST_TILES]


def _alone(reference: VariantReport) -> tuple[Tile, ...]:
    speed = reference.examples_per_s
    host = peak(reference, "host_peak_mib").mib
    gpu = peak(reference, "gpu_allocator_peak_mib").mib
    found = (
        ("Step, median", fmt.duration(reference.percentile_ms(50))),
        ("Step, p99", fmt.duration(reference.percentile_ms(99))),
        ("Throughput", None if speed is None else f"{fmt.quantity(speed)}/s"),
        ("Peak GPU memory", None if gpu is None else f"{fmt.quantity(gpu)} MiB"),
        ("Peak host memory", None if host is None else f"{fmt.quantity(host)} MiB"),
    )
    return tuple(Tile(label, "", text, "", "plain") for label, text in found if text is not None)


def _time(reference: VariantReport, subject: VariantReport, *, quick: bool) -> Tile | None:
    before, after = example_ms(reference), example_ms(subject)
    comparison = subject.against_reference
    if before is None or after is None or comparison is None:
        return None
    texts = fmt.duration(before), fmt.duration(after)
    return _timed("Time an example", texts, comparison, quick=quick)


def _timed(
    label: str, texts: tuple[str, str], comparison: Comparison, *, quick: bool = False
) -> Tile:
    """Return a tile of two times, with the speed, its interval and the verdict."""
    change = f"{fmt.speed_and_interval(comparison)} {fmt.verdict(comparison, quick=quick)}"
    return Tile(label, *texts, change, verdict_tone(comparison))


def _of_trainings(report: BenchReport, subject: VariantReport) -> tuple[Tile | None, ...]:
    """Return what whole trainings say: time to the accuracy, at equal epochs, size, latency."""
    reference = report.reference
    whole = tuple(middle_training(each, "train_s") for each in (reference, subject))
    until = tuple(to_target_s(report, each) for each in (reference, subject))
    return (
        _seconds("Time to the reference's accuracy", until, subject.to_accuracy),
        _seconds("Training at equal epochs", whole, subject.whole),
        _size(report, subject),
        _latency(report, subject),
    )


def _seconds(
    label: str, values: tuple[float | None, ...], comparison: Comparison | None
) -> Tile | None:
    before, after = values
    if before is None:
        return None
    if after is None:
        return Tile(label, fmt.duration(1000 * before), "not reached", "", "worse")
    texts = fmt.duration(1000 * before), fmt.duration(1000 * after)
    if comparison is None:
        return Tile(label, *texts, "once: no interval", "plain")
    return _timed(label, texts, comparison)


def _sizes(report: BenchReport, subject: VariantReport) -> tuple[str, float, float] | None:
    """Return what of the two is served, or else saved, with its KiB in both."""
    reference, served = report.reference, served_by(report, subject)
    if served is not None and is_change(served[0].kib / served[1].kib):
        return "file for serving", served[0].kib, served[1].kib
    if served is not None:
        # Zeros take as much room as other weights until the file is compressed.
        return "gzipped file for serving", served[0].gzip_kib, served[1].gzip_kib
    made = middle_training(subject, "artefact_kib")
    if made is not None:
        before = middle_training(reference, "artefact_kib") or middle_training(
            reference, "model_kib"
        )
        return None if before is None else ("file for serving", before, made)
    sizes = [middle_training(each, "model_gzip_kib") for each in (reference, subject)]
    return None if None in sizes else ("gzipped model", *sizes)  # type: ignore[return-value]


def _size(report: BenchReport, subject: VariantReport) -> Tile | None:
    sizes = _sizes(report, subject)
    if sizes is None:
        return None
    label, before, after = sizes
    return _ratio_tile(label.capitalize(), before, after, "KiB", "smaller", "larger")


def _latency(report: BenchReport, subject: VariantReport) -> Tile | None:
    served = served_by(report, subject)
    if served is None or served[1].latency is None:
        return None
    before, after = (row.latency_ms for row in served)
    if before is None or after is None:
        return None
    return _timed(
        "Latency to serve", (fmt.duration(before), fmt.duration(after)), served[1].latency
    )


def _examples(reference: VariantReport, subject: VariantReport) -> Tile | None:
    before, after = reference.examples_per_s, subject.examples_per_s
    if before is None or after is None:
        return None
    batches = f"batch {reference.batch_size:,} to {subject.batch_size:,}"
    changed = "" if reference.batch_size == subject.batch_size else batches
    return Tile(
        "Throughput", f"{fmt.quantity(before)}/s", f"{fmt.quantity(after)}/s", changed, "plain"
    )


def _quality(subject: VariantReport) -> Tile | None:
    quality = subject.quality
    if quality is None:
        return None
    tone: Tone = "worse" if quality.lost else "plain"
    change = f"{fmt.signed_points(quality.points)} points"
    return Tile(
        fmt.short(quality.metric).capitalize(),
        fmt.share(statistics.mean(quality.reference)),
        fmt.share(statistics.mean(quality.variant)),
        f"{change}, lost" if quality.lost else change,
        tone,
    )


def _peak(label: str, name: str, reference: VariantReport, subject: VariantReport) -> Tile | None:
    peaks = peak(reference, name).mib, peak(subject, name).mib
    return _ratio_tile(label, *peaks, "MiB", "smaller", "larger")


def _first_step(reference: VariantReport, subject: VariantReport) -> Tile | None:
    before, after = (phase_s(variant, "first_step_s") for variant in (reference, subject))
    return _ratio_tile("First step", before, after, "s", "as fast", "as slow")


def _ratio_tile(
    label: str, before: float | None, after: float | None, unit: str, more: str, less: str
) -> Tile | None:
    if not before or not after:
        return None
    ratio = before / after
    change = fmt.times(ratio, more, less) if is_change(ratio) else "about the same"
    texts = f"{fmt.quantity(before)} {unit}", f"{fmt.quantity(after)} {unit}"
    return Tile(label, *texts, change, size_tone(ratio))


def _headline(report: BenchReport, subject: VariantReport | None) -> str:
    if subject is None:
        return _alone_sentence(report)
    comparison = subject.against_reference
    who = _who(report, subject)
    if comparison is None:
        reason = fmt.one_line(subject.unavailable["against_reference"]).rstrip(".")
        return f"{who} was not compared with {_reference(report)}: {reason}."
    said = _in_words(who, comparison, _reference(report))
    if trained_whole(report) and subject.trainings:
        said = _trained_in_words(report, subject, who)
    sentence = f"{said}{_quality_sentence(subject)}{_served_sentence(report, subject)}."
    recommended, ablation = report.recommendation, report.asked.kind == "ablation"
    if recommended and recommended.keep == report.reference.chain:
        left = "The whole chain is worth keeping" if ablation else "The job is best left as it is"
        if recommended.undecided and not ablation:
            left = "Not decided yet: measure more rounds"
        return f"{left}. {sentence}"
    if recommended and recommended.keep is not None and kept(report) is None:
        whole = "The chain to keep was not measured as a whole."
        return f"{'No chain is recommended.' if lost(subject) else whole} {sentence}"
    return sentence


def _alone_sentence(report: BenchReport) -> str:
    reference = report.reference
    if reference.status != "measured":
        return f"Nothing was measured to the end: {fmt.one_line(reference.reason or '')}"
    step = fmt.duration(reference.percentile_ms(50))
    sentence = f"A step takes {step} (p90 {fmt.duration(reference.percentile_ms(90))})"
    speed = reference.examples_per_s
    sentence += f", {fmt.quantity(speed)} examples a second." if speed else "."
    split = reference.split
    if report.asked.kind == "single" and split is not None:
        tried = f" Try {fmt.one_line(split.try_next)}." if split.try_next else ""
        return f"{sentence} It is {fmt.one_line(split.told).rstrip('.')}.{tried}"
    if report.asked.kind == "single":
        return f"{sentence} One job alone: there is nothing to compare it with."
    return (
        f"{sentence} Only {_reference(report)} was measured: there is nothing to compare it with."
    )


def _reference(report: BenchReport) -> str:
    return fmt.short(report.reference.name)


def _who(report: BenchReport, subject: VariantReport) -> str:
    name = fmt.short(subject.name)
    if subject is kept(report):
        return "The kept chain"
    if report.asked.kind == "ablation":
        return f"The link that matters most: {name}"
    return name if report.asked.kind == "pair" else f"The last row measured ({name})"


def _in_words(who: str, comparison: Comparison, reference: str) -> str:
    speed = fmt.speed_and_interval(comparison)
    runs = f"{who} runs an example at {speed} the speed of {reference}"
    if comparison.verdict == "inconclusive":
        return f"Inconclusive: {runs}; the interval is too wide for a verdict, measure more rounds"
    if comparison.verdict == "no difference":
        return f"No difference: {runs}, within {SAME_WITHIN * 100:g} %"
    return f"{runs}: {comparison.verdict}"


def _trained_in_words(report: BenchReport, subject: VariantReport, who: str) -> str:
    """Return first how soon it is as accurate as the reference, then the time at equal epochs."""
    whole, until, wanted = subject.whole, subject.to_accuracy, target(report)
    parts = []
    if until is not None and wanted is not None:
        parts.append(
            f"reaches {_reference(report)}'s test accuracy of {fmt.share(wanted)} "
            f"{fmt.speed_and_interval(until)} as fast ({until.verdict})"
        )
    elif wanted is not None and to_target_s(report, subject) is None:
        parts.append(f"does not reach {_reference(report)}'s test accuracy of {fmt.share(wanted)}")
    if whole is not None:
        parts.append(
            f"trains {fmt.speed_and_interval(whole)} as fast at equal epochs ({whole.verdict})"
        )
    elif subject is not report.reference:
        seconds = [middle_training(each, "train_s") or 0.0 for each in (report.reference, subject)]
        before, after = (fmt.duration(1000 * each) for each in seconds)
        often = how_often(subject) or "not compared"
        parts.append(f"trains in {after} where {_reference(report)} takes {before} ({often})")
    return f"{who} {' and '.join(parts)}"


def _served_sentence(report: BenchReport, subject: VariantReport) -> str:
    """Return how much smaller it is, and how soon what is served answers."""
    sizes = _sizes(report, subject) if trained_whole(report) and subject.trainings else None
    parts = []
    if sizes is not None and is_change(sizes[1] / sizes[2]):
        parts.append(f"the {sizes[0]} is {fmt.times(sizes[1] / sizes[2], 'smaller', 'larger')}")
    served = served_by(report, subject)
    if served is not None and served[1].latency is not None:
        latency = served[1].latency
        parts.append(f"answers {fmt.speed_and_interval(latency)} as fast ({latency.verdict})")
    return f"; {' and '.join(parts)}" if parts else ""


def _quality_sentence(subject: VariantReport) -> str:
    quality, comparison = subject.quality, subject.whole or subject.against_reference
    if comparison and comparison.verdict == "inconclusive" and not lost(subject):
        return ""  # what it costs matters once it is known to bring something
    if quality is None:
        return ", the trained weights are the same" if subject.exact else ", quality not measured"
    metric = fmt.short(quality.metric)
    if lost(subject):
        return f", but loses {fmt.points(quality.points)} of {metric}: not recommended"
    unsure = "" if quality.certain else f" (not certain over {len(quality.seeds)} seeds)"
    return f", {fmt.signed_points(quality.points)} points of {metric}{unsure}"
