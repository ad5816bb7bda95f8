"""What a bench report says in ten seconds: one sentence, a few figures before and after.

Guarantees: the verdict is the interval's, never a reader's guess; a variant that loses quality is
never presented as recommended; what a reader must know first is said first.
"""

from __future__ import annotations

from tfopt.report import format as fmt
from tfopt.report.bench import words
from tfopt.report.bench.comparison import SAME_WITHIN, Comparison
from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.figures import kept, lost
from tfopt.report.bench.tiles import tiles_of
from tfopt.report.bench.variant import VariantReport
from tfopt.report.summary import Summary

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
        return max(compared, key=_time)
    return others[-1]


def _time(variant: VariantReport) -> float:
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
        return _alone(report)
    comparison = subject.against_reference
    who = _who(report, subject)
    if comparison is None:
        reason = fmt.one_line(subject.unavailable["against_reference"]).rstrip(".")
        return f"{who} was not compared with {_reference(report)}: {reason}."
    told = f"{_in_words(who, comparison, _reference(report))}{_quality(subject)}."
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


def _alone(report: BenchReport) -> str:
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


def _quality(subject: VariantReport) -> str:
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
