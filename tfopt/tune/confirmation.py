"""Confirm by whole trainings that a chain which trains other weights loses no accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tfopt.measure.engine import Engine
from tfopt.measure.scores import READINGS, TrainWhole
from tfopt.measure.trainings import UNPAIRED, Order, quality, train
from tfopt.report.bench_report import Objective, Quality
from tfopt.report.training import lowest_final_accuracy
from tfopt.tune.space import Rate
from tfopt.tune.time_left import TimeLeft
from tfopt.tune.trial import Trial, Trials

_LOST_AT_ONCE = 2  # times what may be lost, with one seed


@dataclass
class Confirmation:
    """Trains the job as it is and what is fast with the same seeds, and compares them.

    ``quality`` is the last comparison of a trial that was confirmed, or why there is none.
    """

    trials: Trials
    time: TimeLeft
    engine: Engine
    objective: Objective
    seeds: int
    max_drop: float
    quality: Quality | str = ""

    def as_good(self, trial: Trial) -> Trial | None:
        """Return a trial, maybe with another learning rate, that loses no accuracy; else None."""
        if trial.variant.chain.exact:
            return trial
        if trial.lost:
            return None
        if not self.seeds:
            self.quality = "not confirmed: no whole training was asked for"
            return trial
        rates = self._rates(trial)
        if not rates:
            trial.lost = f"no time was left to train it whole; {self.time.longer_budget()}"
            return None
        tried = [self.trials.of(replace(trial.setting, learning_rate=rate)) for rate in rates]
        for other in tried:
            other.value = trial.value  # its steps are the same
        self._train(tried, seeds=[0])
        good = [other for other in tried if self._loses(other, _LOST_AT_ONCE) is None]
        # The seed by which a rate was chosen flatters it.
        first = 1 if len(good) > 1 and self.seeds > 1 else 0
        for best in sorted(good, key=self._promise):
            self._train([best], seeds=list(range(1, self.seeds)))
            best.lost = self._loses(best, 1, first) or ""
            if not best.lost:
                self.quality = self._quality(best, first)
                for other in good:
                    if other is not best:
                        other.lost = other.lost or "another learning rate was better"
                return best
        for other in tried:
            other.lost = other.lost or self._loses(other, _LOST_AT_ONCE) or ""
        return None

    def _rates(self, trial: Trial) -> list[Rate | None]:
        """Return the learning rates to train a trial with, as many as the time left allows."""
        rates: list[Rate | None] = [None]
        facts = self.trials.facts
        if trial.setting.batch_size is not None and facts.rule is not None:
            rates = ["cosine", "fast"] if facts.rate else [None, "cosine"]
        fit = (self.time.left_s - self.time.final_s) / self.time.trainings_s(1)
        own = min(trial.value, 1.0)  # as a share of a training of the job as it is
        needed = own + (not self.trials.plain.trainings.done)
        if fit < needed:
            return []
        # Two rates take a training more, and both sides with another seed.
        return rates if self.seeds <= 1 or fit >= needed + 2 * own + 1 else rates[:1]

    def _train(self, trials: Sequence[Trial], seeds: Sequence[int]) -> None:
        """Train the job as it is and these trials, each with the seeds that it lacks."""
        readings = READINGS if self.objective == "time-to-accuracy" else 1
        orders = [
            Order(trial.variant, seed, trial.trainings, TrainWhole(readings=readings))
            for seed in seeds
            for trial in (self.trials.plain, *trials)
            if seed not in {done.seed for done in trial.trainings.done}
        ]
        time, engine = self.time, self.engine
        until = time.ends - time.final_s - time.trainings_s(1)
        longest_s = train(orders, engine.display, at_once=engine.trainings_at_once, until=until)
        time.longest_training_s = max(time.longest_training_s, longest_s)

    def _quality(self, trial: Trial, first: int = 0) -> Quality | str:
        """Compare the trainings of a trial and of the job as it is, from a seed on."""
        plain, own = (
            replace(side, done=tuple(made for made in side.done if made.seed >= first))
            for side in (self.trials.plain.trainings, trial.trainings)
        )
        return quality(plain, own, self.max_drop)

    def _loses(self, trial: Trial, times: float, first: int = 0) -> str | None:
        """Return what whole trainings say against a trial, or None."""
        found = self._quality(trial, first)
        if isinstance(found, str):
            longer = f"; {self.time.longer_budget()}" if found == UNPAIRED else ""
            return f"its quality is not known: {found}{longer}"
        if found.points < -self.max_drop * times:
            return f"it loses {-found.points:.2f} points of accuracy (seeds: {len(found.seeds)})"
        return None

    def _promise(self, trial: Trial) -> float:
        """Return what the best learning rate minimizes: steps to the accuracy, or what it lacks."""
        first = trial.trainings.done[0]
        if self.objective != "time-to-accuracy":
            return -(first.test_accuracy or 0.0)
        target = lowest_final_accuracy(self.trials.plain.trainings.done)
        steps = first.steps_to(target) if target is not None else None
        return math.inf if steps is None else steps
