"""Train variants whole: one training of each a round, in random order, every round with its seed.

Each training is a fresh process. What is finished is in the store, so that a stopped measurement
goes on. Trainings of one round are compared with each other, so that a machine that grows slower
slows both.
"""

from __future__ import annotations

import math
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from tfopt.files import write_atomically
from tfopt.measure.blocks import BlockStore
from tfopt.measure.process import WorkerResult, run_worker
from tfopt.measure.rehearsal import notes_of
from tfopt.measure.statistics import LEAST_ROUNDS, compare
from tfopt.measure.tasks import Training
from tfopt.measure.variant import Variant
from tfopt.measure.watcher import Watcher
from tfopt.report import format as fmt
from tfopt.report.bench_report import Quality
from tfopt.report.footprint import CONFIDENCE, Comparison
from tfopt.report.strict import Status, decode
from tfopt.report.training import Figures, lowest_final_accuracy

TOLERANCE_POINTS = 0.5
TEST_ACCURACY = "test accuracy"
EXACT = "every transform in it is exact: it trains the same weights, but for rounding"
# Accuracies are kept to so many points: no interval claims to be narrower.
_POINTS_KEPT = 1e-3
# Beside the blocks of a measurement, since only its end tells whose files are wanted.
FILES, SERVING = "files", "serving"
_MANIFEST = ".tfopt-files"


@dataclass(frozen=True)
class Trainings:
    """The whole trainings of a variant, a round each, and why there are no more.

    ``notes`` is what the transforms said they did; ``status`` is that of the variant.
    """

    rounds: tuple[Figures, ...] = ()
    reason: str | None = None
    status: Status = "measured"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Kept:
    """The part of a training that goes on disk."""

    figures: Figures
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TrainingRounds:
    """What to train: the variants, a seed for each round, and where files are left.

    Attributes:
        data: What each variant is known to be trained on, by its name.
        folder: Where the first training of each variant leaves its files; None: nowhere.
        serves: The names of those that also leave what they would serve.
    """

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    data: Mapping[str, str]
    folder: Path | None = None
    serves: frozenset[str] = frozenset()

    def order(self, seed: int) -> list[Variant]:
        """Return the variants in the order of this round."""
        order = list(self.variants)
        random.Random(f"training/{seed}").shuffle(order)
        return order


def train_seeds(
    plan: TrainingRounds,
    store: BlockStore,
    watcher: Watcher,
    found: dict[str, Trainings],
) -> Iterator[int]:
    """Train each variant once a round, adding to ``found``; yield a round's number at its end.

    A variant that failed is in no later round.
    """
    took_s: dict[str, list[float]] = {}
    for number, seed in enumerate(plan.seeds):
        order = plan.order(seed)
        for place, variant in enumerate(order):
            before = found.get(variant.name, Trainings())
            if before.reason is not None or seed in {figures.seed for figures in before.rounds}:
                continue
            name = f"training-{variant.digest}-{seed}"
            kept = store.note(name, lambda content: decode(_Kept, content))
            if kept is None:
                rest = (*order[place:], *order * (len(plan.seeds) - number - 1))
                todo = [v.name for v in rest if found.get(v.name, before).reason is None]
                watcher.doing(f"training with seed {seed}", variant.name, _left_s(todo, took_s))
                begun = time.monotonic()
                result = _train(plan, variant, seed, first=not before.rounds, tell=watcher.progress)
                took_s.setdefault(variant.name, []).append(time.monotonic() - begun)
                if result.value is None:
                    # Not kept on disk: a training that failed may do better next time.
                    reason = f"with seed {seed}: {result.reason}"
                    found[variant.name] = replace(before, reason=reason, status=result.status)
                    watcher.left_out(variant.name, reason)
                    continue
                kept = _Kept(result.value, notes_of(variant, result))
                store.write_note(name, asdict(kept))
            rounds, notes = (*before.rounds, kept.figures), before.notes or kept.notes
            found[variant.name] = replace(before, rounds=rounds, notes=notes)
            watcher.trained(variant.name, kept.figures)
        yield number


def _train(
    plan: TrainingRounds,
    variant: Variant,
    seed: int,
    *,
    first: bool,
    tell: Callable[[int, int, int], None],
) -> WorkerResult[Figures]:
    output = serving = None
    if first and plan.folder is not None:
        output = str(files_of(plan.folder, variant, FILES))
        shutil.rmtree(output, ignore_errors=True)
        if variant.name in plan.serves:
            serving = str(files_of(plan.folder, variant, SERVING))
            shutil.rmtree(serving, ignore_errors=True)
    result = run_worker(
        Training(output, serving),
        job=variant.job,
        arguments=variant.arguments,
        chain=variant.chain,
        seed=seed,
        on_progress=tell,
        forked=True,
    )
    expected = plan.data.get(variant.name)
    if result.value is None or expected in (None, result.data):
        return result
    # A source chosen at run time may come or go.
    reason = f"it got other data than before, so it cannot be compared: {result.data}"
    return WorkerResult("failed", None, reason, {}, result.data)


def files_of(folder: Path, variant: Variant, kind: str) -> Path:
    """Return the folder of what the first training of a variant left."""
    return folder / kind / variant.digest


def _left_s(todo: Sequence[str], took_s: Mapping[str, list[float]]) -> tuple[float, float] | None:
    if not took_s:
        return None
    means = {name: statistics.fmean(taken) for name, taken in took_s.items()}
    # Of a variant that was not trained yet nobody knows better.
    total = sum(means.get(name, statistics.fmean(means.values())) for name in todo)
    return total, total


# What trainings say about each other: those of one seed belong to one round.


def matched(reference: Trainings, variant: Trainings) -> list[tuple[Figures, Figures]]:
    """Return the trainings of one round, in pairs."""
    first = {figures.seed: figures for figures in reference.rounds}
    return [(first[own.seed], own) for own in variant.rounds if own.seed in first]


def compare_whole(reference: Trainings, variant: Trainings, *, seed: int = 0) -> Comparison | str:
    """Compare the seconds of whole trainings, as a share; a text is why that is not possible."""
    if reference.reason or variant.reason:
        return reference.reason or variant.reason or ""
    pairs = [(one.train_s, other.train_s) for one, other in matched(reference, variant)]
    return _compared(pairs, seed)


def compare_to_accuracy(
    reference: Trainings, variant: Trainings, *, seed: int = 0
) -> Comparison | str:
    """Compare the seconds until the test accuracy that each training of the reference reaches."""
    if reference.reason or variant.reason:
        return reference.reason or variant.reason or ""
    target = lowest_final_accuracy(reference.rounds)
    if target is None:
        return "the reference has no test accuracy"
    pairs = []
    for one, other in matched(reference, variant):
        first, own = one.seconds_to(target), other.seconds_to(target)
        assert first is not None, "the target is the lowest of its own"
        if own is None:
            return _not_reached(other, target)
        pairs.append((first, own))
    return _compared(pairs, seed)


def _not_reached(figures: Figures, target: float) -> str:
    accuracies = [epoch.test_accuracy for epoch in figures.epochs]
    best = max((accuracy for accuracy in accuracies if accuracy is not None), default=None)
    if best is None:
        return "no test accuracy was measured after its epochs"
    return (
        f"with seed {figures.seed} no epoch reached {fmt.share(target)}, the lowest final test "
        f"accuracy of the reference; the best was {fmt.share(best)}"
    )


def _compared(seconds: Sequence[tuple[float, float]], seed: int) -> Comparison | str:
    if len(seconds) < LEAST_ROUNDS:
        many = "once" if len(seconds) == 1 else "in no round"
        return f"trained {many} beside the reference: no interval"
    first, own = ([(each,) for each in side] for side in zip(*seconds, strict=True))
    return compare(first, own, seed=seed)


def served_accuracy(figures: Figures) -> tuple[str, float | None, str | None]:
    """Return name, value and why there is none of the accuracy of what will be served.

    Of a file that was made for it, its own.
    """
    if figures.artefact_accuracy is not None:
        return f"test accuracy of {figures.artefact}", figures.artefact_accuracy, None
    value = figures.test_accuracy
    return TEST_ACCURACY, value, None if value is not None else figures.unavailable["test_accuracy"]


def quality(reference: Trainings, variant: Trainings, tolerance_points: float) -> Quality | str:
    """Return the difference of the two, seed by seed, or why it is not known."""
    if reference.reason or variant.reason:
        return reference.reason or variant.reason or ""
    pairs = matched(reference, variant)
    if not pairs:
        return "no seed with which both were trained yet"
    metric, values = TEST_ACCURACY, []
    for pair in pairs:
        (_, before, no_before), (metric, after, no_after) = map(served_accuracy, pair)
        if before is None or after is None:
            return f"with seed {pair[0].seed}: {no_before or no_after}"
        values.append((before, after))
    points = [100 * (own - other) for other, own in values]
    half, mean = _half_width(points), statistics.fmean(points)
    return Quality(
        metric=metric,
        seeds=tuple(figures.seed for figures, _ in pairs),
        reference=tuple(before for before, _ in values),
        variant=tuple(after for _, after in values),
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
    return max(float(stats.t.ppf(level, len(points) - 1)) * error, _POINTS_KEPT)


def is_exact(variant: Variant) -> bool:
    """Return whether it trains the weights of the plain job."""
    return all(part.exact for part in variant.chain.parts)


def leave_files(folder: Path, made: Path) -> None:
    """Copy a variant's files into ``folder``; those of an earlier measurement go.

    Only what its list names is taken away: other files there are the user's.
    """
    listed = folder / _MANIFEST
    for name in listed.read_text(encoding="utf-8").split("\n") if listed.exists() else ():
        if name and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
    paths = sorted(made.glob("*"))
    for path in paths:
        write_atomically(folder / path.name, partial(shutil.copyfile, path))
    write_atomically(listed, "\n".join(path.name for path in paths))


def keep_only(folder: Path, digests: set[str]) -> None:
    """Let go of what the trainings left, but for these variants' files."""
    shutil.rmtree(folder / SERVING, ignore_errors=True)
    for made in (folder / FILES).glob("*"):
        if made.name not in digests:
            shutil.rmtree(made, ignore_errors=True)
