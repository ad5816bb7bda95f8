"""What follows from a report's figures: ratios and differences against the baseline.

Guarantees: nothing here is stored; whatever lacks one of its two figures is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tfopt.report.figures import Figures
from tfopt.report.schema import Noise

ACCURACY_TOLERANCE_POINTS = 0.3
"""Accuracies closer than this count as equal."""
LEAST_CHANGE = 0.03
"""Smaller relative changes are no change, even where the noise is smaller still."""


@dataclass(frozen=True)
class Comparison:
    """One variant against the baseline. Speeds and shrinks above 1 are improvements."""

    examples_per_s_ratio: float | None
    train_speedup: float | None
    accuracy_points: float | None
    host_shrink: float | None
    gpu_shrink: float | None
    model_shrink: float | None
    model_gzip_shrink: float | None
    to_serve_kib: tuple[float | None, float | None]
    """The file that the baseline would serve, and the one that was made for serving."""
    artefact_shrink: float | None
    """The first of these over the second."""
    artefact_accuracy_points: float | None


def compare(
    figures: Figures,
    baseline: Figures,
    *,
    same_training: bool = False,
    baseline_serves_kib: float | None = None,
) -> Comparison:
    """Derives all ratios of ``figures`` against ``baseline``.

    Args:
        figures: Those of the variant.
        baseline: What they are compared with.
        same_training: Whether both train by the same program: how their times differ is noise.
        baseline_serves_kib: Its own file for serving; None where there is none, and its saved
            model stands in.
    """
    to_serve_kib = (baseline_serves_kib or baseline.model_kib, figures.artefact_kib)
    throughput = _ratio(figures.examples_per_s, baseline.examples_per_s)
    speedup = _ratio(baseline.train_s, figures.train_s)
    return Comparison(
        examples_per_s_ratio=None if same_training else throughput,
        train_speedup=None if same_training else speedup,
        accuracy_points=_points(figures.test_accuracy, baseline.test_accuracy),
        host_shrink=_ratio(baseline.peak_host_mib, figures.peak_host_mib),
        gpu_shrink=_ratio(baseline.peak_gpu_mib, figures.peak_gpu_mib),
        model_shrink=_ratio(baseline.model_kib, figures.model_kib),
        model_gzip_shrink=_ratio(baseline.model_gzip_kib, figures.model_gzip_kib),
        to_serve_kib=to_serve_kib,
        artefact_shrink=_ratio(*to_serve_kib),
        artefact_accuracy_points=_points(figures.artefact_accuracy, baseline.test_accuracy),
    )


def seconds_to_accuracy(figures: Figures, target: float | None) -> float | None:
    """Training seconds until the first epoch that ends at ``target`` within the tolerance."""
    if target is None:
        return None
    # Half a millionth: accuracies are stored rounded, and the tolerance is inclusive.
    enough = target - ACCURACY_TOLERANCE_POINTS / 100 - 5e-7
    for epoch in figures.epochs:
        if epoch.test_accuracy is not None and epoch.test_accuracy >= enough:
            return epoch.train_s
    return None


def is_accuracy_change(points: float) -> bool:
    """Whether two accuracies differ by more than the tolerance; floats blur its edge."""
    return abs(points) > ACCURACY_TOLERANCE_POINTS + 1e-6


def is_change(ratio: float, noise: Noise | None) -> bool:
    """Whether a ratio of times says more than two runs of the same program would."""
    return abs(ratio - 1) > max(LEAST_CHANGE, noise.ratio if noise else 0.0)


def _ratio(value: float | None, reference: float | None) -> float | None:
    if value is None or not reference:
        return None
    ratio = value / reference
    return ratio if math.isfinite(ratio) and ratio > 0 else None


def _points(accuracy: float | None, reference: float | None) -> float | None:
    if accuracy is None or reference is None:
        return None
    return (accuracy - reference) * 100
