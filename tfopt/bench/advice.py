"""Which transforms of a measured chain are worth keeping, and why the others are not.

Guarantees: every transform of the chain gets a verdict with the figures behind it; none is
recommended that costs more accuracy than the tolerance; a difference smaller than that of two
identical baselines is said to be within the noise. Times are compared by their median steps.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from tfopt.job import Transform
from tfopt.report.schema import Figures

ACCURACY_TOLERANCE_POINTS = 0.5
_LEAST_GAIN = 0.03
_LEAST_SHRINK = 0.10


@dataclass(frozen=True)
class Verdict:
    """Keep it or not, with the reason."""

    transform: Transform
    keep: bool
    reason: str


def judge(
    transform: Transform, before: Figures, after: Figures, baseline: Figures, noise: float
) -> Verdict:
    """Compares the row that a transform added with the row before it."""
    lost = _points_lost(baseline, after)
    if lost is not None and lost > ACCURACY_TOLERANCE_POINTS:
        already = _points_lost(baseline, before) or 0.0
        if lost - already > ACCURACY_TOLERANCE_POINTS / 2:
            return Verdict(transform, False, f"costs {lost:.1f} points of test accuracy")
    judges = {"speed": _faster, "size": _smaller, "accuracy": _better}
    keep, reason = judges[transform.aim](before, after, noise)
    return Verdict(transform, keep, reason)


def _faster(before: Figures, after: Figures, noise: float) -> tuple[bool, str]:
    ratio = undisturbed_s(after) / undisturbed_s(before)
    told = f"training time x{ratio:.2f}"
    if abs(ratio - 1) < noise:
        told += f", within the noise of {noise:.0%}: measure again on a quieter machine"
    return ratio < 1 - _LEAST_GAIN, told


def undisturbed_s(figures: Figures) -> float:
    """Training time as if every step had taken the median: what others do on a shared machine
    shows in the mean of the steps, hardly in their median."""
    if figures.step_ms_median is None or figures.first_step_s is None:
        return figures.train_s
    steady = max(figures.train_s - figures.first_step_s, 0.0)
    mean = statistics.fmean(figures.windows_ms)
    return figures.first_step_s + steady * figures.step_ms_median / mean


def _smaller(before: Figures, after: Figures, noise: float) -> tuple[bool, str]:
    """A file that is new is compared with the model it was made from."""
    old = before.artefact_kib or before.model_gzip_kib
    new = after.artefact_kib or after.model_gzip_kib
    if old is None or new is None:
        return False, "the size could not be measured"
    what = after.artefact if after.artefact and not before.artefact else "gzipped model"
    if after.artefact and not before.artefact:
        old = before.model_kib or old
    accuracy = after.artefact_accuracy
    if accuracy is not None and before.test_accuracy is not None:
        lost = (before.test_accuracy - accuracy) * 100
        if lost > ACCURACY_TOLERANCE_POINTS:
            return False, f"the file {after.artefact} costs {lost:.1f} points of test accuracy"
    told = f"{what}: {old:.0f} KiB to {new:.0f} KiB"
    return (True, told) if new < old * (1 - _LEAST_SHRINK) else (False, f"{told}: hardly smaller")


def _better(before: Figures, after: Figures, noise: float) -> tuple[bool, str]:
    if before.test_accuracy is None or after.test_accuracy is None:
        return False, "no accuracy was measured"
    gained = (after.test_accuracy - before.test_accuracy) * 100
    return gained > 0, f"test accuracy {gained:+.2f} points"


def _points_lost(reference: Figures, figures: Figures) -> float | None:
    if reference.test_accuracy is None or figures.test_accuracy is None:
        return None
    return (reference.test_accuracy - figures.test_accuracy) * 100


def tell_brought(baseline: Figures, kept: Figures) -> str:
    """What the kept chain brought over the baseline, in one line."""
    parts = [
        f"trains in {kept.train_s / baseline.train_s:.2f} of the baseline's time at equal epochs "
        f"({baseline.train_s:.1f} s to {kept.train_s:.1f} s)"
    ]
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
