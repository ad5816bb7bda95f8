"""Study a variant: where the time of its step goes, and what the step computes and moves.

Each study is a fresh process, of several the median counts; the machine's ceilings are measured in
a process of their own while nothing else runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

from tfopt.errors import UserError
from tfopt.job.job import Job, Transform
from tfopt.measure.blocks import BlockStore
from tfopt.measure.ceilings import MeasuredCeilings
from tfopt.measure.process import run_worker
from tfopt.measure.step_cost import StepCost, roofline
from tfopt.measure.tasks import Done, Progress, Task, Training
from tfopt.measure.time_split import split
from tfopt.measure.turns import Modes
from tfopt.measure.variant import Variant
from tfopt.report.bench.bench_report import Quality, Roofline, TimeSplit
from tfopt.report.footprint import CONFIDENCE
from tfopt.report.schema import Figures
from tfopt.report.strict import decode

# Whole trainings of variants that do not train the same weights, over several seeds.
#
# The reference and each variant are trained with the same seeds, on the same data and for as many
# examples.

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
    """The part of a training that is kept."""

    metric: str
    value: float | None
    reason: str | None


def is_exact(variant: Variant) -> bool:
    """Return whether it trains the weights of the plain job."""
    return all(part.exact for part in variant.chain.parts)


def train_seeds(
    variant: Variant,
    seeds: Sequence[int],
    store: BlockStore,
    tell: Callable[[Variant, int], None],
) -> Trainings:
    """Train a variant once for each seed; finished trainings are in the store."""
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
    """Return the metric, and whether the training came to its end."""
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
    """Return the accuracy of what will be served: of a file that was made for it, its own."""
    name, value = TEST_ACCURACY, figures.test_accuracy
    if figures.artefact_accuracy is not None:
        name, value = f"test accuracy of {figures.artefact}", figures.artefact_accuracy
    reason = None if value is not None else figures.unavailable["test_accuracy"]
    return _Metric(name, value, reason)


def quality(
    reference: Trainings, variant: Trainings, seeds: Iterable[int], tolerance_points: float
) -> Quality | str:
    """Return the difference of the two, seed by seed, or why it is not known."""
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


@dataclass(frozen=True)
class Seen:
    """The findings of one process: the modes of a step, and its cost or why it is not known."""

    modes: Modes
    cost: StepCost | None
    no_cost: str | None


@dataclass(frozen=True)
class Look(Task[Seen]):
    """Measure the modes of a variant's step, and count what it does."""

    kind: ClassVar[str] = "look"

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        from tfopt.measure.step_cost import step_cost
        from tfopt.measure.turns import measure_modes
        from tfopt.run import prepared

        with prepared(job, endless=True) as ready:
            modes = measure_modes(ready)
            # After the modes: counting traces the step once more.
            cost = step_cost(ready)
            seen = Seen(modes, None, cost) if isinstance(cost, str) else Seen(modes, cost, None)
            return Done(asdict(seen), ready.effects, ready.data.summary)

    def read(self, value: Mapping[str, Any]) -> Seen:
        return decode(Seen, dict(value))


@dataclass(frozen=True)
class Limits:
    """The machine's ceilings, or why they are not known."""

    measured: MeasuredCeilings | None
    reason: str | None


@dataclass(frozen=True)
class MachineCeilings(Task[Limits]):
    """Measure what this machine's first device can do in a dtype; the job is not looked at."""

    dtype: str

    kind: ClassVar[str] = "ceilings"

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        import tensorflow as tf

        from tfopt.measure.ceilings import ceilings

        device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
        found = ceilings(self.dtype, device)
        limits = Limits(None, found) if isinstance(found, str) else Limits(found, None)
        return Done(asdict(limits), (), "")

    def read(self, value: Mapping[str, Any]) -> Limits:
        return decode(Limits, dict(value))


@dataclass(frozen=True)
class Study:
    """The findings on one variant; a text is the reason why there is none."""

    split: TimeSplit | str
    roofline: Roofline | str


class Studies:
    """The studies of variants, each in some processes; what is finished is in the store."""

    def __init__(self, store: BlockStore, processes: int) -> None:
        self._store = store
        self._processes = processes
        self._known: dict[str, Limits] = {}

    def of(self, variant: Variant, tell: Callable[[int], None]) -> Study | str:
        """Return what the processes saw together, or why they saw nothing."""
        seen = []
        for number in range(self._processes):
            found = self._look(variant, f"study-{variant.digest}-{number}", partial(tell, number))
            if isinstance(found, str):
                return found
            seen.append(found)
        parts = _split([each.modes for each in seen], variant)
        return Study(parts, self._roofline(seen[0], parts, variant))

    def _look(self, variant: Variant, name: str, tell: Callable[[], None]) -> Seen | str:
        kept = self._store.note(name, lambda content: decode(Seen, content))
        if kept is not None:
            return kept
        tell()
        result = run_worker(
            Look(), job=variant.job, arguments=variant.arguments, chain=variant.chain
        )
        if result.value is None:
            # Not kept: what failed, as where memory ran out, may do better next time.
            return result.reason or "nothing came back"
        self._store.write_note(name, asdict(result.value))
        return result.value

    def _roofline(self, seen: Seen, parts: TimeSplit | str, variant: Variant) -> Roofline | str:
        if seen.cost is None:
            return seen.no_cost or "the step's cost cannot be told"
        if isinstance(parts, str):
            return f"the device's time is not known: {parts}"
        limits = self._limits(seen.cost.dtype, variant)
        if limits.measured is None:
            return f"the machine's ceilings are not known: {limits.reason}"
        basis = "the device's part of a step"
        step_ms = parts.fit_ms * parts.device_share
        if not step_ms:
            return "the device's part of a step is too small to be told from the host's"
        held = limits.measured
        return roofline(seen.cost, step_ms, held.ceilings, basis, held.notes)

    def _limits(self, dtype: str, variant: Variant) -> Limits:
        if dtype not in self._known:
            # Under no chain: a transform may hide the device, or set another precision.
            task = MachineCeilings(dtype)
            result = run_worker(task, job=variant.job, arguments=variant.arguments)
            self._known[dtype] = result.value or Limits(None, result.reason)
        return self._known[dtype]


def _split(modes: list[Modes], variant: Variant) -> TimeSplit | str:
    try:
        return split(modes, variant.chain.parts)
    except UserError as error:
        return f"{error.what} {error.received}"
