"""What a bench report says in ten seconds: one sentence, a few figures before and after.

Guarantees: the verdict is the interval's, never a reader's guess; a variant that loses quality is
never presented as recommended; what a reader must know first is said first.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from tfopt.report import bench_words as words
from tfopt.report import format as fmt
from tfopt.report.bench.bench_figures import example_ms, kept, lost, peak, phase_s
from tfopt.report.bench.bench_report import BenchReport, VariantReport
from tfopt.report.columns import Tone, size_tone
from tfopt.report.footprint import SAME_WITHIN, Comparison
from tfopt.report.schema import is_change
from tfopt.report.summary import Summary, Tile

# The figures at the top of a bench report: before, after, and what changed.
#
# Guarantees: a tile stands only where both figures were measured; a colour is the interval's.


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


_QUICK = (
    "Quick: less was measured than by default. The figures show a direction; they are not for "
    "publishing."
)


def summarise(report: BenchReport) -> Summary:
    """Compares the variant that matters most with the reference."""
    subject = subject_of(report)
    headline = _headline(report, subject)
    if report.asked.quick:
        headline = f"Quick measurement: {headline}"
    return Summary(
        headline=headline,
        warning=" ".join(_warnings(report)),
        subject=fmt.one_line(subject.name) if subject else "",
        tiles=tiles_of(report, subject),
    )


def subject_of(report: BenchReport) -> VariantReport | None:
    """What the headline is about: the kept chain, else what the kind of measurement asks for."""
    recommended = kept(report)
    if recommended is not None:
        return recommended
    others = [variant for variant in report.measured if variant is not report.reference]
    if not others:
        return None
    compared = [variant for variant in others if variant.against_reference is not None]
    if report.asked.kind == "ablation" and compared:
        return max(compared, key=_time_sentence)
    return others[-1]


def _time_sentence(variant: VariantReport) -> float:
    return variant.against_reference.ratio if variant.against_reference else 0.0


def _warnings(report: BenchReport) -> list[str]:
    told = [_QUICK] if report.asked.quick else []
    if not report.complete:
        told.append("Incomplete: the measurement stopped before its end.")
    failed = [
        fmt.one_line(variant.name) for variant in report.variants if variant.status == "failed"
    ]
    if failed:
        told.append(f"Failed: {', '.join(failed)}.")
    losing = [
        f"{fmt.one_line(variant.name)} ({fmt.signed_points(variant.quality.points)} points)"
        for variant in report.variants
        if variant.quality is not None and variant.quality.lost
    ]
    if losing:
        told.append(f"Quality is lost, not recommended: {', '.join(losing)}.")
    blocks = [block for variant in report.variants for block in variant.blocks]
    invalid = sum(block.invalid is not None for block in blocks)
    if invalid:
        told.append(f"Invalid blocks, not counted: {invalid} of {len(blocks)}.")
    return told


def _headline(report: BenchReport, subject: VariantReport | None) -> str:
    if subject is None:
        return _alone_sentence(report)
    comparison = subject.against_reference
    who = _who(report, subject)
    if comparison is None:
        reason = fmt.one_line(subject.unavailable["against_reference"]).rstrip(".")
        return f"{who} was not compared with {_reference(report)}: {reason}."
    told = f"{_in_words(who, comparison, _reference(report))}{_quality_sentence(subject)}."
    recommended, ablation = report.recommendation, report.asked.kind == "ablation"
    if recommended and recommended.keep == report.reference.chain:
        left = "The whole chain is worth keeping" if ablation else "The job is best left as it is"
        if recommended.undecided and not ablation:
            left = "Not decided yet: measure more rounds"
        return f"{left}. {told}"
    if recommended and recommended.keep is not None and kept(report) is None:
        whole = "The chain to keep was not measured as a whole."
        return f"{'No chain is recommended.' if lost(subject) else whole} {told}"
    return told


def _alone_sentence(report: BenchReport) -> str:
    reference = report.reference
    if reference.status != "measured":
        return f"Nothing was measured to the end: {fmt.one_line(reference.reason or '')}"
    step = words.duration(reference.percentile_ms(50))
    told = f"A step takes {step} (p90 {words.duration(reference.percentile_ms(90))})"
    speed = reference.examples_per_s
    told += f", {fmt.quantity(speed)} examples a second." if speed else "."
    split = reference.split
    if report.asked.kind == "single" and split is not None:
        tried = f" Try {fmt.one_line(split.try_next)}." if split.try_next else ""
        return f"{told} It is {fmt.one_line(split.told).rstrip('.')}.{tried}"
    if report.asked.kind == "single":
        return f"{told} One job alone: there is nothing to compare it with."
    return f"{told} Only {_reference(report)} was measured: there is nothing to compare it with."


def _reference(report: BenchReport) -> str:
    return words.short(report.reference.name)


def _who(report: BenchReport, subject: VariantReport) -> str:
    name = words.short(subject.name)
    if subject is kept(report):
        return "The kept chain"
    if report.asked.kind == "ablation":
        return f"The link that matters most: {name}"
    return name if report.asked.kind == "pair" else f"The last row measured ({name})"


def _in_words(who: str, comparison: Comparison, reference: str) -> str:
    took = f"{who} runs an example in {words.ratio(comparison.ratio)} of the time of {reference}"
    if comparison.verdict == "inconclusive":
        return (
            f"Inconclusive: {took}, and the interval {words.interval(comparison)} is too wide for "
            "a verdict; measure more rounds"
        )
    if comparison.verdict == "no difference":
        within = f"{SAME_WITHIN * 100:g} %"
        return (
            f"No difference: {took} (95 % interval {words.interval(comparison)}, within {within})"
        )
    return f"{took} ({words.speed(comparison)})"


def _quality_sentence(subject: VariantReport) -> str:
    quality, comparison = subject.quality, subject.against_reference
    if comparison and comparison.verdict == "inconclusive" and not lost(subject):
        return ""  # what it costs matters once it is known to bring something
    if quality is None:
        return ", the trained weights are the same" if subject.exact else ", quality not measured"
    metric = words.short(quality.metric)
    if lost(subject):
        return f", but loses {fmt.points(quality.points)} of {metric}: not recommended"
    unsure = "" if quality.certain else f", not certain over {len(quality.seeds)} seeds"
    return f", no {metric} lost ({fmt.signed_points(quality.points)} points{unsure})"
