"""Train variants whole, beside each other, and compare what they reach and how soon.

A training is not timed: its result is the accuracy by the number of steps. Its time is the
first step, that count times the step time from the turns, and the ends of epochs as the share that
the training saw. So trainings run on all cores at once, and their scatter is that of the seeds.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfopt.export.serving import ServingFile
from tfopt.measure.children import JobProcess, Lost
from tfopt.measure.scores import NO_FILE, Trained, TrainWhole
from tfopt.measure.targets import Target
from tfopt.report import format as fmt
from tfopt.report.bench_report import Quality
from tfopt.report.display import Display
from tfopt.report.statistics import LEAST, Comparison, compare_crossed, compare_pairs, students_t
from tfopt.report.strict import Status
from tfopt.report.timed_process import TimedProcess, as_compiled
from tfopt.report.training import Training, lowest_final_accuracy

MAX_DROP = 0.5
TEST_ACCURACY = "test accuracy"
COMPARED = ("steps_to_accuracy", "whole", "to_accuracy")
TOO_FEW = "fewer than two processes of each took turns beside each other"
UNPAIRED = "the two were not trained with the same seed"
EXACT = "every transform in it is exact: it trains the same weights, but for rounding"
_LOOKED_EVERY_S = 0.05
_LONGEST_S = 24 * 3600.0  # what has answered may have to start anew, to load TensorFlow itself
# Accuracies are kept to so many points: no interval claims to be narrower.
_POINTS_KEPT = 1e-3


@dataclass
class Trainings:
    """The whole trainings of a variant by their seeds, and why there are no more.

    Attributes:
        notes: What each transform did, by its repr.
        served: The file that serves the first of them, or why there is none.
    """

    done: tuple[Training, ...] = ()
    reason: str | None = None
    status: Status = "measured"
    notes: Mapping[str, str] = field(default_factory=dict)
    served: ServingFile | str = "no file of it was made"

    @property
    def tried(self) -> bool:
        """Return whether one was made, or could not be made."""
        return bool(self.done or self.reason)

    def add(self, trainings: Iterable[Training]) -> None:
        """Add trainings with seeds that it does not have yet."""
        by_seed = {training.seed: training for training in (*trainings, *self.done)}
        self.done = tuple(by_seed[seed] for seed in sorted(by_seed))


@dataclass(frozen=True)
class Order:
    """One training to make, of a variant with a seed; its result is added ``to`` the others."""

    variant: Target
    seed: int
    to: Trainings
    task: TrainWhole = TrainWhole()  # noqa: RUF009 (frozen)


def train(
    orders: Sequence[Order], display: Display, *, at_once: int = 1, until: float = math.inf
) -> float:
    """Make these trainings, some at a time.

    None begins that would not end before ``until``, by the longest of its variant so far. Of a
    variant that failed no further training begins. Returns the seconds of the longest.
    """
    waiting, running = list(orders), list[tuple[Order, JobProcess, float]]()
    longest_s: dict[str, float] = {}
    done = 0
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                now, name = time.monotonic(), waiting[0].variant.name
                if now + longest_s.get(name, 0.0) >= until:
                    waiting.clear()  # what is trained with a seed is compared
                    break
                order = waiting.pop(0)
                if order.to.reason is None:
                    child = JobProcess(order.variant, order.task, seed=order.seed)
                    running.append((order, child, now))
            if not running:
                break
            display.doing(f"training whole, {done + 1} of {len(orders)}")
            looks = itertools.cycle(running)
            wait_s = _LOOKED_EVERY_S / len(running)
            order, child, begun = ended = next(o for o in looks if o[1].has_answered(wait_s))
            running.remove(ended)
            _note(order, child)
            name, lasted_s = order.variant.name, time.monotonic() - begun
            longest_s[name] = max(lasted_s, longest_s.get(name, 0.0))
            done += 1
    finally:
        for _, child, _ in running:
            child.end()
    return max(longest_s.values(), default=0.0)


def _note(order: Order, child: JobProcess) -> None:
    try:
        trained: Trained = child.receive(_LONGEST_S)
    except Lost as lost:
        order.to.reason, order.to.status = f"with seed {order.seed}: {lost}", lost.status
        return
    finally:
        child.end()
    order.to.add([trained.training])
    order.to.notes = trained.notes
    order.to.served = trained.served or order.to.served


def without_file(training: Training) -> Training:
    """Return the training of the variant that makes no file of its model."""
    gone: dict[str, Any] = dict.fromkeys(NO_FILE)
    return replace(training, **gone, unavailable={**training.unavailable, **NO_FILE})


# What trainings say about each other: those of one seed belong together.


def matched(reference: Trainings, variant: Trainings) -> list[tuple[Training, Training]]:
    """Return the trainings of one seed, in pairs."""
    first = {training.seed: training for training in reference.done}
    return [(first[own.seed], own) for own in variant.done if own.seed in first]


def compare_trainings(
    reference: Trainings,
    variant: Trainings,
    timed: Sequence[Sequence[TimedProcess]],
) -> dict[str, Comparison | str]:
    """Return the comparisons by their names in a report; a text is why one is not possible.

    ``timed`` are the processes of both, in the rounds that all were in.
    """
    pairs = matched(reference, variant)
    why = reference.reason or variant.reason
    if why is None and len(pairs) < LEAST:
        seeds = fmt.count(len(pairs), "seed")
        why = f"trained whole with {seeds} beside the reference: no interval"
    if why is not None:
        return dict.fromkeys(COMPARED, why)
    trained = tuple(zip(*pairs, strict=True))

    def seconds(steps: Callable[[Training], float]) -> Comparison | str:
        if min(map(len, timed)) < LEAST:
            return TOO_FEW
        # Now and then tf.data waits at the end of an epoch: the share is that of all trainings.
        shares = [[training.epoch_end_share for training in own] for own in trained]
        first, second = (
            [
                [one.training_s(steps(training), statistics.fmean(ends)) for training in own]
                for one in as_compiled(side)
            ]
            for side, own, ends in zip(timed, trained, shares, strict=True)
        )
        return compare_crossed(first, second, [[1 / (1 - e) for e in ends] for ends in shares])

    whole = seconds(lambda training: training.steps)
    target = lowest_final_accuracy(reference.done)
    missed = "the reference has no test accuracy" if target is None else _missed(variant, target)
    if missed is not None or target is None:
        return {**dict.fromkeys(COMPARED, missed or ""), "whole": whole}

    def steps_to(training: Training) -> float:
        return training.steps_to(target) or math.inf

    def examples_to(training: Training) -> float:
        return steps_to(training) * training.readings[-1].examples / training.readings[-1].steps

    first, second = (list(map(examples_to, side)) for side in trained)
    return {
        "steps_to_accuracy": compare_pairs(first, second),
        "whole": whole,
        "to_accuracy": seconds(steps_to),
    }


def _missed(trainings: Trainings, target: float) -> str | None:
    for training in trainings.done:
        if training.steps_to(target) is None:
            best = max((reading.accuracy for reading in training.readings), default=None)
            if best is None:
                return "no test accuracy was read"
            return (
                f"with seed {training.seed} it did not reach {fmt.share(target)}, the lowest last "
                f"reading of the reference; the best was {fmt.share(best)}"
            )
    return None


def served_accuracy(training: Training) -> tuple[str, float | None, str | None]:
    """Return the name and value of the served model's accuracy, and why there is none.

    Of a file that was made for it, its own.
    """
    if training.artefact_accuracy is not None:
        return f"test accuracy of {training.artefact}", training.artefact_accuracy, None
    value = training.test_accuracy
    return TEST_ACCURACY, value, training.unavailable.get("test_accuracy")


def quality(reference: Trainings, variant: Trainings, max_drop: float) -> Quality | str:
    """Return the difference of the two, seed by seed, or why it is not known."""
    if reference.reason or variant.reason:
        return reference.reason or variant.reason or ""
    pairs = matched(reference, variant)
    if not pairs:
        return UNPAIRED
    metric, values = TEST_ACCURACY, []
    for pair in pairs:
        (_, before, no_before), (metric, after, no_after) = map(served_accuracy, pair)
        if before is None or after is None:
            return f"with seed {pair[0].seed}: {no_before or no_after}"
        values.append((before, after))
    points = [100 * (own - other) for other, own in values]
    mean, half = statistics.fmean(points), 100.0
    # One pair says nothing about the next; no interval narrower than the scale is honest.
    if len(points) >= LEAST:
        error = statistics.stdev(points) / math.sqrt(len(points))
        half = max(students_t(len(points) - 1) * error, _POINTS_KEPT)
    return Quality(
        metric=metric,
        seeds=tuple(training.seed for training, _ in pairs),
        reference=tuple(before for before, _ in values),
        variant=tuple(after for _, after in values),
        points=round(mean, 4),
        low=round(mean - half, 4),
        high=round(mean + half, 4),
        tolerance_points=max_drop,
    )
