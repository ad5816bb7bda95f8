"""Sum a bench report up in one sentence.

It says what is certain, and a variant that loses quality is never recommended.
"""

from __future__ import annotations

from tfopt.report import format as fmt
from tfopt.report.bench_figures import (
    decisive,
    is_faster,
    kept,
    lost,
    recommended,
    served_by,
    sizes,
    steps_to_target,
    target,
)
from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.table import is_change

# What a time costs does not matter where it is not certain.
_UNCERTAIN = {"no difference": ", which is no difference", "inconclusive": ", too wide to tell"}
_SPOKEN = {
    "whole": "trains {}",
    "to_accuracy": "trains {} to the same accuracy",
    "against_reference": "runs an example {}",
}


def subject_of(report: BenchReport) -> VariantReport | None:
    """Return the chain to keep, else what this kind of measurement is about; None without any."""
    others = [variant for variant in report.measured if variant is not report.reference]
    if report.asked.kind == "ablation":
        found = kept(report)
        is_shorter = found is not None and found is not report.reference
        return found if is_shorter else max(others, key=_ratio, default=None)
    fastest = [variant for variant in others if is_faster(variant)] or others
    default = min(fastest, key=lambda variant: (lost(variant), _ratio(variant)), default=None)
    return recommended(report) or default


def _ratio(variant: VariantReport) -> float:
    """Return the time of an example; one that was not compared counts as the reference."""
    return variant.against_reference.ratio if variant.against_reference else 1.0


def warning_of(report: BenchReport) -> str:
    """Return what a reader must know first: incomplete, rows that failed, lost quality."""
    warnings = [] if report.complete else ["Incomplete: the measurement stopped before its end."]
    failed = [fmt.one_line(row.name) for row in report.variants if row.status == "failed"]
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
    return " ".join(warnings)


def headline_of(report: BenchReport) -> str:
    """Return the variant that matters most, compared with the reference, in one sentence."""
    subject, advice, best = subject_of(report), report.recommendation, kept(report)
    if advice is not None and advice.brought and report.asked.kind == "tune":
        return f"{_capital(advice.brought)}."  # by what the search minimized
    if subject is None:
        return _alone_sentence(report)
    sentence = _sentence(report, subject)
    if advice is None or advice.keep is None or subject is best:
        return sentence
    if best is not None:
        return f"The whole chain is worth keeping. {sentence}"
    if lost(subject) and advice.keep != report.reference.chain:
        return f"No chain is recommended. {sentence}"
    undecided = " Not decided yet: a longer measurement may." if advice.undecided else ""
    return f"{sentence}{undecided}"


def _alone_sentence(report: BenchReport) -> str:
    reference = report.reference
    if reference.status != "measured":
        return f"Nothing was measured to the end: {fmt.one_line(reference.reason or '')}"
    step, p90 = fmt.duration(reference.step_ms), fmt.duration(reference.percentile_ms(90))
    speed = reference.examples_per_s
    fast = f", {fmt.quantity(speed)} examples a second" if speed else ""
    alone = "One job alone"
    if report.asked.kind != "single":
        alone = f"Only {_reference(report)} was measured"
    return f"A step takes {step} (p90 {p90}){fast}. {alone}: there is nothing to compare it with."


def _sentence(report: BenchReport, subject: VariantReport) -> str:
    """Return what is certain of the subject: its time, then its quality and what it serves."""
    found, who = decisive(subject), _who(report, subject)
    start = _capital(who) if who.startswith("the chain ") else who
    if found is None:
        reason = fmt.one_line(subject.unavailable["against_reference"]).rstrip(".")
        return f"{start} was not compared with {_reference(report)}: {reason}."
    (name, comparison), served = found, _served_words(report, subject)
    said = _SPOKEN[name].format(fmt.speed_in_words(comparison))
    said += _UNCERTAIN.get(comparison.verdict) or _quality_words(report, subject, name)
    if name != "whole" and subject.whole is not None:
        whole = fmt.speed_in_words(subject.whole)
        said += f"; a whole training is {whole}, too wide to tell"
    best = subject is kept(report)
    if comparison.verdict == "faster":
        said = _capital(said) if best else f"{start} {said}"
        return f"{said}; {served}." if served else f"{said}."
    if best:
        first = f"{_capital(served)}. It" if served else "The chain to keep"
        return f"{first} was not shown to be faster: it {said}."
    if report.asked.kind == "ablation" and comparison.verdict == "slower":
        return f"The link that matters most: {who} {said}."
    if any(map(is_faster, report.measured)):
        return f"{start} was not shown to be faster: it {said}."
    return f"Nothing was shown to be faster: {who} {said}."


def _reference(report: BenchReport) -> str:
    return fmt.short(report.reference.name)


def _who(report: BenchReport, subject: VariantReport) -> str:
    name, kind = fmt.short(subject.name), report.asked.kind
    if kind == "ablation" and subject.transform is not None:
        return f"{name} the chain"
    # A row "+ Quantize" has the links before it too, and what they bring.
    alone = subject.chain == f"chain({subject.transform})"
    is_link = kind == "prefixes" and subject.transform is not None
    return f"the chain up to {name}" if is_link and not alone else name


def _capital(sentence: str) -> str:
    return f"{sentence[0].upper()}{sentence[1:]}"


def _quality_words(report: BenchReport, subject: VariantReport, time: str) -> str:
    quality, wanted = subject.quality, target(report)
    if quality is not None and quality.lost:
        metric = fmt.short(quality.metric)
        return f", but loses {fmt.points(quality.points)} of {metric}: not recommended"
    if time == "to_accuracy":
        return ""
    if subject.trainings and wanted is not None and not steps_to_target(report, subject):
        accuracy = f"{_reference(report)}'s accuracy of {fmt.share(wanted)}"
        return f", but does not reach {accuracy} on ten test batches"
    if subject.exact:
        return ", the trained weights are the same but for rounding"
    if quality is None:
        return ", quality not measured"
    seeds = fmt.count(len(quality.seeds), "seed")
    points = fmt.signed_points(quality.points)
    if time == "whole":
        unsure = "" if quality.certain else f", not certain over {seeds}"
        return f" to the same accuracy ({points} points{unsure})"
    unsure = "" if quality.certain else f" (not certain over {seeds})"
    return f", at {points} points of {fmt.short(quality.metric)}{unsure}"


def _served_words(report: BenchReport, subject: VariantReport) -> str:
    """Return how much smaller the served file is, and how much faster where that is certain."""
    sides = report.reference, subject, report.serving
    found, served, parts = sizes(*sides), served_by(*sides), []
    if found is not None and is_change(found[1] / found[2]):
        shrink, way = found[1] / found[2], "smaller"
        if shrink < 1:
            shrink, way = 1 / shrink, "larger"
        parts.append(f"the {found[0]} is {fmt.quantity(shrink, 2)} times {way}")
    latency = served[1].latency if served is not None else None
    if latency is not None and latency.verdict in ("faster", "slower"):
        parts.append(f"answers {fmt.speed_in_words(latency)}")
    return " and ".join(parts)
