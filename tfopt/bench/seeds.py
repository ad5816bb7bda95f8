"""Whole trainings of variants that do not train the same weights, over several seeds.

Guarantees: the reference and each variant are trained with the same seeds, on the same data and
for as many examples, each in a fresh process; a variant whose transforms are all exact is not
trained, and says so; what could not be measured has its reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from tfopt.bench.block_store import BlockStore
from tfopt.bench.process import run_worker
from tfopt.bench.tasks import Training
from tfopt.bench.variant import Variant
from tfopt.report.bench.comparison import CONFIDENCE
from tfopt.report.bench.quality import Quality
from tfopt.report.figures import Figures
from tfopt.report.strict import decode

TOLERANCE_POINTS = 0.5
TEST_ACCURACY = "test accuracy"
EXACT = "every transform in it is exact: it trains the same weights, but for rounding"


@dataclass(frozen=True)
class Trainings:
    """The metric of each seed, or why there is none."""

    metric: str
    values: tuple[float, ...]
    reason: str | None


@dataclass(frozen=True)
class _Metric:
    """What is kept of a training."""

    metric: str
    value: float | None
    reason: str | None


def is_exact(variant: Variant) -> bool:
    """Whether it trains the weights of the plain job."""
    return all(part.exact for part in variant.chain.parts)


def train_seeds(
    variant: Variant,
    seeds: Sequence[int],
    store: BlockStore,
    tell: Callable[[Variant, int], None],
) -> Trainings:
    """Trains a variant once for each seed; finished trainings are in the store."""
    metric, values = TEST_ACCURACY, []
    for seed in seeds:
        name = f"training-{variant.digest}-{seed}"
        kept = store.note(name, lambda content: decode(_Metric, content))
        if kept is None:
            tell(variant, seed)
            kept, trained = _train(variant, seed)
            # A training that failed may do better next time; one without a metric will not.
            if trained:
                store.write_note(name, asdict(kept))
        if kept.value is None:
            return Trainings(kept.metric, (), f"with seed {seed}: {kept.reason}")
        metric = kept.metric
        values.append(kept.value)
    return Trainings(metric, tuple(values), None)


def _train(variant: Variant, seed: int) -> tuple[_Metric, bool]:
    """The metric, and whether the training came to its end."""
    result = run_worker(
        Training(),
        job=variant.job,
        arguments=variant.arguments,
        chain=variant.chain,
        seed=seed,
    )
    if result.value is None:
        return _Metric(TEST_ACCURACY, None, result.reason), False
    return _metric(result.value), True


def _metric(figures: Figures) -> _Metric:
    """A file that was made for serving is what will be served: its own accuracy counts."""
    name, value = TEST_ACCURACY, figures.test_accuracy
    if figures.artefact_accuracy is not None:
        name, value = f"test accuracy of {figures.artefact}", figures.artefact_accuracy
    reason = None if value is not None else figures.unavailable["test_accuracy"]
    return _Metric(name, value, reason)


def quality(
    reference: Trainings, variant: Trainings, seeds: Iterable[int], tolerance_points: float
) -> Quality | str:
    """The difference of the two, seed by seed, or why it cannot be told."""
    if reference.reason is not None or variant.reason is not None:
        return reference.reason or variant.reason or ""
    pairs = zip(reference.values, variant.values, strict=True)
    points = [100 * (own - other) for other, own in pairs]
    half = _half_width(points)
    mean = statistics.fmean(points)
    return Quality(
        metric=variant.metric,
        seeds=tuple(seeds),
        reference=reference.values,
        variant=variant.values,
        points=round(mean, 4),
        low=round(mean - half, 4),
        high=round(mean + half, 4),
        tolerance_points=tolerance_points,
    )


def _half_width(points: Sequence[float]) -> float:
    from scipy import stats

    if len(points) < 2:
        # One pair says nothing about the next; no interval narrower than the scale is honest.
        return 100.0
    level = 1 - (1 - CONFIDENCE) / 2
    error = statistics.stdev(points) / math.sqrt(len(points))
    return float(stats.t.ppf(level, len(points) - 1)) * error
