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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tfopt.measure.children import Child, Lost
from tfopt.measure.display import Display
from tfopt.measure.scores import NO_FILE, Trained, TrainWhole
from tfopt.measure.targets import Target
from tfopt.report import format as fmt
from tfopt.report.bench_report import Quality
from tfopt.report.statistics import LEAST, Comparison, compare_crossed, compare_pairs, students_t
from tfopt.report.strict import Status
from tfopt.report.timed_process import TimedProcess, in_shared_rounds
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


@dataclass(frozen=True)
class Trainings:
    """The whole trainings of a variant by its seeds, and why there are no more."""

    done: tuple[Training, ...] = ()
    reason: str | None = None
    status: Status = "measured"
    notes: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Order:
    """One training to make: a variant with a seed."""

    variant: Target
    seed: int
    task: TrainWhole = TrainWhole()  # noqa: RUF009 (frozen)


def train(
    orders: Sequence[Order],
    display: Display,
    found: dict[str, Trainings],
    *,
    at_once: int = 1,
    until: float = math.inf,
) -> float:
    """Make these trainings, some at a time; add them to ``found`` under the variants' names.

    None begins that would not end before ``until``, by the longest of its variant so far. Of a
    variant that failed no further training begins. Returns the seconds of the longest.
    """
    waiting, running = list(orders), list[tuple[Order, Child, float]]()
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
                if found.get(name, Trainings()).reason is None:
                    child = Child(order.variant, order.task, seed=order.seed)
                    running.append((order, child, now))
            if not running:
                break
            display.doing(f"training whole, {done + 1} of {len(orders)}")
            looks = itertools.cycle(running)
            wait_s = _LOOKED_EVERY_S / len(running)
            order, child, begun = ended = next(o for o in looks if o[1].has_answered(wait_s))
            running.remove(ended)
            _note(found, order, child)
            name, lasted_s = order.variant.name, time.monotonic() - begun
            longest_s[name] = max(lasted_s, longest_s.get(name, 0.0))
            done += 1
    finally:
        for _, child, _ in running:
            child.end()
    return max(longest_s.values(), default=0.0)


def _note(found: dict[str, Trainings], order: Order, child: Child) -> None:
    name = order.variant.name
    before = found.get(name, Trainings())
    try:
        trained: Trained = child.receive(_LONGEST_S)
    except Lost as lost:
        found[name] = replace(before, reason=f"with seed {order.seed}: {lost}", status=lost.status)
        return
    finally:
        child.end()
    done = sorted((*before.done, trained.training), key=lambda each: each.seed)
    found[name] = replace(before, done=tuple(done), notes=trained.notes)


def trained_by(variant: Target, variants: Sequence[Target]) -> Target:
    """Return the variant that trains as this one does and makes a file of it; else itself.

    One that makes a file itself is trained for it.
    """
    own = variant.chain.parts
    for other in variants:
        parts, added = other.chain.parts[: len(own)], other.chain.parts[len(own) :]
        same = (other.job, other.arguments, parts) == (variant.job, variant.arguments, own)
        files = all(part.only_a_file for part in added) and not any(p.only_a_file for p in own)
        if same and added and files:
            return other
    return variant


def also_of(own: Trainings, other: Trainings) -> Trainings:
    """Return the trainings of a variant with those of another that differs by a file it makes."""
    seeds = {each.seed for each in own.done}
    new = [
        replace(
            each,
            artefact=None,
            artefact_kib=None,
            artefact_accuracy=None,
            unavailable={**each.unavailable, **NO_FILE},
        )
        for each in other.done
        if each.seed not in seeds
    ]
    return replace(own, done=tuple(sorted((*own.done, *new), key=lambda each: each.seed)))


# What trainings say about each other: those of one seed belong together.


def matched(reference: Trainings, variant: Trainings) -> list[tuple[Training, Training]]:
    """Return the trainings of one seed, in pairs."""
    first = {training.seed: training for training in reference.done}
    return [(first[own.seed], own) for own in variant.done if own.seed in first]


def compare_trainings(
    reference: Trainings,
    variant: Trainings,
    processes: tuple[Sequence[TimedProcess], Sequence[TimedProcess]],
) -> dict[str, Comparison | str]:
    """Return the comparisons by their names in a report; a text is why one is not possible.

    ``processes`` of both took turns, which tell the time of a step.
    """
    pairs = matched(reference, variant)
    why = reference.reason or variant.reason
    if why is None and len(pairs) < LEAST:
        seeds = fmt.count(len(pairs), "seed")
        why = f"trained whole with {seeds} beside the reference: no interval"
    if why is not None:
        return dict.fromkeys(COMPARED, why)
    timed, trained = in_shared_rounds(*processes), tuple(zip(*pairs, strict=True))

    def seconds(steps: Callable[[Training], float]) -> Comparison | str:
        if min(map(len, timed)) < LEAST:
            return TOO_FEW
        # Now and then tf.data waits at the end of an epoch: the share is that of all trainings.
        shares = [[each.epoch_end_share for each in own] for own in trained]
        first, second = (
            [[one.training_s(steps(each), statistics.fmean(ends)) for each in own] for one in side]
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
    for each in trainings.done:
        if each.steps_to(target) is None:
            best = max((reading.accuracy for reading in each.readings), default=None)
            if best is None:
                return "no test accuracy was read"
            return (
                f"with seed {each.seed} it did not reach {fmt.share(target)}, the lowest last "
                f"reading of the reference; the best was {fmt.share(best)}"
            )
    return None


def served_accuracy(training: Training) -> tuple[str, float | None, str | None]:
    """Return name, value and why there is none of the accuracy of what will be served.

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
