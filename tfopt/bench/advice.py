"""Which transforms of a measured chain are worth keeping, and why the others are not.

Guarantees: every transform of the chain gets a verdict with the figures behind it; what is kept
costs, all together, no more test accuracy than the tolerance; nothing that trains other weights
is kept where no accuracy was measured; a difference smaller than that of two identical
baselines is said to be within the noise; transforms that pay only with those that are kept are
found where the whole chain shows it; and a kept chain that did not hold when it was measured as
a whole is not recommended. Two rows are compared by their median steps, the chain to keep and
the baseline by their whole training times.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfopt.job import Transform
from tfopt.report.derived import ACCURACY_TOLERANCE_POINTS, LEAST_CHANGE, is_accuracy_change
from tfopt.report.schema import Figures

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
    """A verdict for each step, in the order of the chain."""
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
    """Why the chain of all that is worth keeping is not worth it after all, or None."""
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
    """Whether the whole chain is faster than what is kept of it, and nothing speaks against it.

    One transform may take away what stood in another's way: by itself it brings nothing.
    """
    dropped = [verdict for verdict in verdicts if not verdict.keep]
    faster = undisturbed_s(whole) < undisturbed_s(kept) * (1 - LEAST_CHANGE)
    return faster and all(verdict.only_slow for verdict in dropped)


def undisturbed_s(figures: Figures) -> float:
    """Training time as if every step had taken the median: what others do on a shared machine
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
    told = f"training time x{ratio:.2f}"
    if abs(ratio - 1) < noise:
        told += f", within the noise of {noise:.0%}: measure again on a quieter machine"
    return ratio < 1 - LEAST_CHANGE, told


def _smaller(before: Figures, after: Figures, noise: float) -> tuple[bool, str]:
    """A file that is new is compared with the model it was made from."""
    file_is_new = after.artefact is not None and after.artefact != before.artefact
    if not file_is_new:
        return _shrinks("gzipped model", before.model_gzip_kib, after.model_gzip_kib)
    lost_points = _points(before.test_accuracy, after.artefact_accuracy)
    if lost_points is None:
        return False, f"nobody can say what the file {after.artefact} costs: no accuracy of it"
    if _is_loss(lost_points):
        return False, f"the file {after.artefact} costs {lost_points:.1f} points of test accuracy"
    return _shrinks(str(after.artefact), before.model_kib, after.artefact_kib)


def _shrinks(what: str, old: float | None, new: float | None) -> tuple[bool, str]:
    if old is None or new is None:
        return False, "the size could not be measured"
    told = f"{what}: {old:.0f} KiB to {new:.0f} KiB"
    return (True, told) if new < old * (1 - _LEAST_SHRINK) else (False, f"{told}: hardly smaller")


def _better(before: Figures, after: Figures, noise: float) -> tuple[bool, str]:
    lost_points = _points_lost(before, after)
    if lost_points is None:
        return False, "no accuracy was measured"
    told = f"test accuracy {-lost_points:+.2f} points"
    if is_accuracy_change(lost_points):
        return lost_points < 0, told
    return False, f"{told}, within the tolerance of {ACCURACY_TOLERANCE_POINTS:g}"


def _is_loss(points: float) -> bool:
    return points > 0 and is_accuracy_change(points)


def _points_lost(reference: Figures, figures: Figures) -> float | None:
    return _points(reference.test_accuracy, figures.test_accuracy)


def _points(reference: float | None, accuracy: float | None) -> float | None:
    if reference is None or accuracy is None:
        return None
    return (reference - accuracy) * 100


def leaves_training(transforms: Sequence[Transform]) -> bool:
    """Whether all of them act after the training: what its times differ by is then noise."""
    return all(transform.changes <= {"after_fit"} for transform in transforms)


def tell_brought(chain: Sequence[Transform], baseline: Figures, kept: Figures, noise: float) -> str:
    """What the kept chain brought over the baseline, in one line."""
    parts = []
    if not leaves_training(chain):
        ratio = kept.train_s / baseline.train_s
        told = (
            f"trains in {ratio:.2f} of the baseline's time at equal epochs "
            f"({baseline.train_s:.1f} s to {kept.train_s:.1f} s)"
        )
        # As the report's headline judges it.
        if abs(1 / ratio - 1) <= noise:
            told += f", within the noise of {noise:.0%}"
        parts.append(told)
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
