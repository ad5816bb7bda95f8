"""Decide which transforms of a measured chain are worth keeping, and say why the others are not.

A link is kept only on a gain beyond the noise, and what is kept may cost, all together, no more
accuracy than the tolerance. A chain that did not hold when it was measured as a whole is not
recommended.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfopt.job.job import Chain, Transform
from tfopt.measure.rehearsal import Rehearsed
from tfopt.report import format as fmt
from tfopt.report.bench.bench_report import Kind, Recommendation, VariantReport
from tfopt.report.footprint import Comparison
from tfopt.report.schema import ACCURACY_TOLERANCE_POINTS, LEAST_CHANGE, Figures, is_accuracy_change

# Which links of a measured chain to keep: what the intervals allow to say, and nothing more.

Rows = Sequence[tuple[Rehearsed, VariantReport]]


@dataclass(frozen=True)
class Choice:
    """The links worth keeping, each judged alone, and why the others are not.

    Attributes:
        measured: The row that measured exactly these links, if one did.
        otherwise: The chain to stay with where the links kept do not hold as a whole.
        ablation: Whether everything was compared with the whole chain, not with the plain job.
        undecided: The links of which the intervals cannot tell.
    """

    chain: Chain
    dropped: tuple[str, ...]
    measured: VariantReport | None
    otherwise: Chain
    ablation: bool = False
    undecided: tuple[str, ...] = ()


def choose(kind: Kind, rows: Rows) -> Choice | None:
    """Return the links to keep of a walk or an ablation; None for any other experiment."""
    if kind == "prefixes":
        return _out_of_prefixes(rows)
    return _out_of_ablation(rows) if kind == "ablation" else None


def recommend(choice: Choice, whole: VariantReport | None) -> Recommendation:
    """Return what to keep; ``whole`` is a row that measured the chosen chain afterwards."""
    row = choice.measured or whole
    if row is None:
        brought = "not known: it was not measured as a whole"
        return _recommendation(choice, choice.chain, brought, choice.dropped)
    against = _against_the_whole(choice, row)
    if against is None:
        return _recommendation(choice, choice.chain, _brought(choice, row), choice.dropped)
    dropped = (*choice.dropped, f"{', '.join(_names(choice.chain)) or 'no link'}: {against}")
    return _recommendation(choice, choice.otherwise, _as_it_is(choice.otherwise), dropped)


def _recommendation(
    choice: Choice, chain: Chain, brought: str, dropped: tuple[str, ...]
) -> Recommendation:
    return Recommendation(repr(chain), brought, dropped, choice.undecided)


def _out_of_prefixes(rows: Rows) -> Choice:
    """Judge every link by the step that added it."""
    kept: list[Transform] = []
    dropped: list[str] = []
    undecided: list[str] = []
    points = 0.0
    measured: VariantReport | None = rows[0][1]
    together: tuple[Chain, VariantReport] | None = None
    before, clean, open_ = rows[0][1], True, True
    for rehearsed, row in rows[1:]:
        transform = rehearsed.variant.changed
        assert transform is not None
        name = type(transform).__name__
        own = _points(row) - _points(before)
        reason = _against(transform, row, own, points)
        if reason is None:
            kept.append(transform)
            points += own
            measured = row if clean else None
        else:
            dropped.append(f"{name}: {reason}")
        if row.status != "measured":
            continue
        before = row
        if reason is not None:
            # The rows from here on have a link in them that is not kept.
            clean = False
            unclear = _is_unclear(transform, row, own, points)
            undecided += [name] if unclear else []
            open_ = open_ and unclear
        if open_ and _is_faster(row):
            together = (rehearsed.variant.chain, row)
    if together is not None and undecided and not kept:
        # No link stands out alone, and nothing speaks against one: together they bring something.
        return Choice(together[0], _not_in(dropped, together[0]), together[1], Chain(()))
    return Choice(
        Chain(tuple(kept)), tuple(dropped), measured, Chain(()), undecided=tuple(undecided)
    )


def _not_in(dropped: Sequence[str], chain: Chain) -> tuple[str, ...]:
    names = _names(chain)
    return tuple(reason for reason in dropped if reason.partition(":")[0] not in names)


def _is_faster(row: VariantReport) -> bool:
    lost = row.quality is not None and row.quality.lost
    comparison = row.against_reference
    return comparison is not None and comparison.verdict == "faster" and not lost


def _is_unclear(transform: Transform, row: VariantReport, own: float, points: float) -> bool:
    """Return whether only the width of the interval speaks against a link."""
    comparison = row.against_previous
    if _lossy(transform, row, own, points) is not None or comparison is None:
        return False
    return comparison.verdict == "inconclusive"


def _out_of_ablation(rows: Rows) -> Choice:
    """Drop a link where leaving it out is shown to cost no time, or to save accuracy."""
    kept, dropped, undecided = [], [], []
    whole, whole_row = rows[0][0].variant.chain, rows[0][1]
    for rehearsed, row in rows[1:]:
        transform = rehearsed.variant.changed
        assert transform is not None
        name = type(transform).__name__
        comparison = row.against_reference
        gained = _points(row) - _points(whole_row)
        if transform not in whole.parts:
            dropped.append(f"{name}: {row.reason}")
        elif whole_row.quality is not None and gained > whole_row.quality.tolerance_points:
            metric = whole_row.quality.metric
            dropped.append(f"{name}: without it the rest has {gained:.2f} points of {metric} more")
        elif transform.aim != "speed" or comparison is None:
            kept.append(transform)
        elif comparison.verdict in ("no difference", "faster"):
            dropped.append(f"{name}: without it the rest is {in_words(comparison)}")
        else:
            kept.append(transform)
            undecided += [name] if comparison.verdict == "inconclusive" else []
    chain = Chain(tuple(kept))
    measured = [
        row
        for rehearsed, row in rows
        if rehearsed.variant.chain == chain and row.status == "measured"
    ]
    ruined = whole_row.quality is not None and whole_row.quality.lost
    return Choice(
        chain,
        tuple(dropped),
        measured[0] if measured else None,
        Chain(()) if ruined else whole,
        ablation=True,
        undecided=tuple(undecided),
    )


def _points(row: VariantReport) -> float:
    """Return the metric's points against the plain job, whose weights an exact chain trains."""
    return row.quality.points if row.quality is not None else 0.0


def _against(transform: Transform, row: VariantReport, own: float, points: float) -> str | None:
    """Return why a link is not kept, or None; ``points`` is what those kept before it cost."""
    comparison = row.against_previous
    if row.status != "measured":
        return row.reason
    lossy = _lossy(transform, row, own, points)
    if lossy is not None:
        return lossy
    if transform.aim == "size":
        return None
    if comparison is None:
        return row.unavailable["against_previous"]
    if comparison.verdict == "faster":
        return None
    if transform.aim == "accuracy" and row.quality is not None and row.quality.low > 0:
        return None
    return f"a step is {in_words(comparison)}"


def _lossy(transform: Transform, row: VariantReport, own: float, points: float) -> str | None:
    if transform.exact:
        return None
    if row.quality is None:
        return f"it trains other weights; their quality: {row.unavailable['quality']}"
    # A link is not blamed for what one was dropped for, but small losses add up.
    if own < 0 and points + own < -row.quality.tolerance_points:
        quality = row.quality
        return f"it loses {-own:.2f} points of {quality.metric} over {len(quality.seeds)} seeds"
    return None


def _against_the_whole(choice: Choice, row: VariantReport) -> str | None:
    """Return why links that are good each are not good together, or None.

    What a walk keeps for its speed must beat the job; what an ablation leaves must not fall behind
    the chain it came from. An interval that is too wide to tell speaks against neither.
    """
    if row.status != "measured":
        return f"together {row.status.replace('_', ' ')}: {row.reason}"
    if row.quality is not None and row.quality.lost:
        return f"together {_loss(row)}"
    comparison = row.against_reference
    if comparison is None:
        return None
    if choice.ablation:
        # A chain that ruins the model may well be faster than what is left of it.
        fails = bool(choice.otherwise.parts) and comparison.verdict == "slower"
    else:
        for_speed = any(part.aim == "speed" for part in choice.chain.parts)
        fails = for_speed and comparison.verdict in ("slower", "no difference")
    return f"together {in_words(comparison)}" if fails else None


def _loss(row: VariantReport) -> str:
    assert row.quality is not None
    quality = row.quality
    return f"loses {-quality.points:.2f} points of {quality.metric} over {len(quality.seeds)} seeds"


def _brought(choice: Choice, row: VariantReport) -> str:
    if row.against_reference is None:
        return _as_it_is(choice.chain)
    quality = row.quality
    points = "" if quality is None else f", {quality.points:+.2f} points of {quality.metric}"
    if quality is not None and not quality.certain:
        points += f" (not certain over {len(quality.seeds)} seeds)"
    return f"an example is {in_words(row.against_reference)}{points}"


def _as_it_is(chain: Chain) -> str:
    return "each of its links earns its place" if chain.parts else "nothing: the job as it is"


def in_words(comparison: Comparison) -> str:
    """Return a comparison in words: the speed, its interval, the verdict."""
    return f"{fmt.speed_and_interval(comparison)} as fast: {comparison.verdict}"


def _names(chain: Chain) -> list[str]:
    return [type(part).__name__ for part in chain.parts]


_LEAST_SHRINK = 0.10


@dataclass(frozen=True)
class Step:
    """A transform with the row before it and the row that it added."""

    transform: Transform
    before: Figures
    after: Figures


@dataclass(frozen=True)
class Verdict:
    """Keep it or not, with the reason."""

    transform: Transform
    keep: bool
    reason: str
    only_slow: bool = False
    """Dropped for its time alone, so others in the chain may still gain by it."""
    in_doubt: bool = False
    """Two runs of the same program differ by as much."""


def judge(steps: Sequence[Step], noise: float) -> list[Verdict]:
    """Return a verdict for each step, in the order of the chain."""
    verdicts, spent_points = [], 0.0
    for step in steps:
        lost_points = _points_lost(step.before, step.after)
        verdict = _too_lossy(step, lost_points, spent_points) or _by_aim(step, noise)
        if verdict.keep:
            # A gain makes up for a loss: the baseline is what counts.
            spent_points += lost_points or 0.0
        verdicts.append(verdict)
    return verdicts


def against_the_whole(kept: Sequence[Transform], baseline: Figures, figures: Figures) -> str | None:
    """Return why the chain of all that is worth keeping is not worth it after all, or None."""
    lost_points = _points_lost(baseline, figures)
    if lost_points is not None and _is_loss(lost_points):
        return f"together they cost {lost_points:.1f} points of test accuracy"
    aims = {part.aim for part in kept}
    # The whole time this once: stalls of a chain's own, between its steps, are paid for too.
    ratio = figures.train_s / baseline.train_s
    better = lost_points is not None and lost_points < 0 and is_accuracy_change(lost_points)
    if "size" in aims or ("accuracy" in aims and better) or ratio < 1:
        return None
    return f"together they bring nothing: training time x{ratio:.2f}"


def pays_only_together(verdicts: Sequence[Verdict], whole: Figures, kept: Figures) -> bool:
    """Return whether the whole chain is faster than what is kept of it, with nothing against it.

    One transform may take away what stood in another's way: by itself it brings nothing.
    """
    dropped = [verdict for verdict in verdicts if not verdict.keep]
    faster = undisturbed_s(whole) < undisturbed_s(kept) * (1 - LEAST_CHANGE)
    return faster and all(verdict.only_slow for verdict in dropped)


def undisturbed_s(figures: Figures) -> float:
    """Return the training time as if every step had taken the median: work of others on the machine
    shows in the mean of the steps, hardly in their median."""
    if figures.step_ms_median is None or figures.first_step_s is None:
        return figures.train_s
    steady = max(figures.train_s - figures.first_step_s, 0.0)
    mean = statistics.fmean(figures.windows_ms)
    return figures.first_step_s + steady * figures.step_ms_median / mean


def _too_lossy(step: Step, lost_points: float | None, spent_points: float) -> Verdict | None:
    if lost_points is None:
        if step.transform.exact:
            return None
        reason = (
            "it trains other weights, and without an accuracy metric and test data nobody can "
            "say whether they are as good"
        )
        return Verdict(step.transform, False, reason)
    if lost_points <= 0 or not _is_loss(spent_points + lost_points):
        return None
    reason = f"costs {lost_points:.1f} points of test accuracy"
    if not _is_loss(lost_points):
        reason += f", {spent_points + lost_points:.1f} with what is kept before it"
    return Verdict(step.transform, False, reason)


def _by_aim(step: Step, noise: float) -> Verdict:
    judges = {"speed": _faster, "size": _smaller, "accuracy": _better}
    keep, reason = judges[step.transform.aim](step.before, step.after, noise)
    only_slow = not keep and step.transform.aim == "speed"
    ratio = undisturbed_s(step.after) / undisturbed_s(step.before)
    in_doubt = step.transform.aim == "speed" and abs(ratio - 1) < noise
    return Verdict(step.transform, keep, reason, only_slow, in_doubt)


def _faster(before: Figures, after: Figures, noise: float) -> tuple[bool, str]:
    ratio = undisturbed_s(after) / undisturbed_s(before)
    words = f"training time x{ratio:.2f}"
    if abs(ratio - 1) < noise:
        words += f", within the noise of {noise:.0%}: measure again on a quieter machine"
    return ratio < 1 - LEAST_CHANGE, words


def _smaller(before: Figures, after: Figures, noise: float) -> tuple[bool, str]:
    """Compare a new file with the model it was made from."""
    file_is_new = after.artefact is not None and after.artefact != before.artefact
    if not file_is_new:
        return _shrinks("gzipped model", before.model_gzip_kib, after.model_gzip_kib)
    lost_points = _in_points(before.test_accuracy, after.artefact_accuracy)
    if lost_points is None:
        return False, f"nobody can say what the file {after.artefact} costs: no accuracy of it"
    if _is_loss(lost_points):
        return False, f"the file {after.artefact} costs {lost_points:.1f} points of test accuracy"
    return _shrinks(str(after.artefact), before.model_kib, after.artefact_kib)


def _shrinks(what: str, old: float | None, new: float | None) -> tuple[bool, str]:
    if old is None or new is None:
        return False, "the size could not be measured"
    words = f"{what}: {old:.0f} KiB to {new:.0f} KiB"
    return (True, words) if new < old * (1 - _LEAST_SHRINK) else (False, f"{words}: hardly smaller")


def _better(before: Figures, after: Figures, noise: float) -> tuple[bool, str]:
    lost_points = _points_lost(before, after)
    if lost_points is None:
        return False, "no accuracy was measured"
    words = f"test accuracy {-lost_points:+.2f} points"
    if is_accuracy_change(lost_points):
        return lost_points < 0, words
    return False, f"{words}, within the tolerance of {ACCURACY_TOLERANCE_POINTS:g}"


def _is_loss(points: float) -> bool:
    return points > 0 and is_accuracy_change(points)


def _points_lost(reference: Figures, figures: Figures) -> float | None:
    return _in_points(reference.test_accuracy, figures.test_accuracy)


def _in_points(reference: float | None, accuracy: float | None) -> float | None:
    if reference is None or accuracy is None:
        return None
    return (reference - accuracy) * 100


def leaves_training(transforms: Sequence[Transform]) -> bool:
    """Return whether all of them act after the training: what its times differ by is then noise."""
    return all(transform.changes <= {"after_fit"} for transform in transforms)


def describe_gain(
    chain: Sequence[Transform], baseline: Figures, kept: Figures, noise: float
) -> str:
    """Return what the kept chain brought over the baseline, in one line."""
    parts = []
    if not leaves_training(chain):
        ratio = kept.train_s / baseline.train_s
        time = (
            f"trains in {ratio:.2f} of the baseline's time at equal epochs "
            f"({baseline.train_s:.1f} s to {kept.train_s:.1f} s)"
        )
        # As the report's headline judges it.
        if abs(1 / ratio - 1) <= noise:
            time += f", within the noise of {noise:.0%}"
        parts.append(time)
    if baseline.test_accuracy is not None and kept.test_accuracy is not None:
        parts.append(f"test accuracy {baseline.test_accuracy:.2%} to {kept.test_accuracy:.2%}")
    if baseline.model_gzip_kib and kept.model_gzip_kib:
        parts.append(
            f"gzipped model {baseline.model_gzip_kib:.0f} to {kept.model_gzip_kib:.0f} KiB"
        )
    if kept.artefact and kept.artefact_kib is not None:
        accuracy = f" at {kept.artefact_accuracy:.2%}" if kept.artefact_accuracy is not None else ""
        parts.append(f"{kept.artefact} of {kept.artefact_kib:.0f} KiB{accuracy}")
    return "; ".join(parts)
