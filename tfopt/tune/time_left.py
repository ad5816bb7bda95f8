"""Estimate how long the rest of a search takes, by what was measured so far."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

from tfopt.job.cgroup import usable_cores
from tfopt.measure.engine import Candidate, Engine

LEAST_PROCESSES = 4  # a side of the final
FINAL_ROUNDS = 6
WAVE = 12  # of settings that race at once
_LEAST_RACES, _MOST_RACES = 0.45, 0.75  # of the budget
_BESIDE_OTHERS = 2.0  # times as long as alone takes one of some that compile beside each other
_SIDE_BY_SIDE = 1.2  # what starting beside others takes, each on its core
# Than its steps in turns: it is evaluated, and runs beside others. Higher than in a
# bench, since one that does not fit is not begun here, while there it only ends later.
_TRAINING_SLOWER = 2.0


class TimeLeft:
    """The budget of a search, and what its parts will take.

    Attributes:
        began: When the search began, in seconds of ``time.monotonic()``.
        ends: When its budget is spent.
        job: The process of the job as it is, by which the others are estimated.
        longest_training_s: The longest whole training so far.
    """

    def __init__(self, engine: Engine, budget_s: float, *, final: bool) -> None:
        self.began = time.monotonic()
        self.ends = self.began + budget_s
        self.longest_training_s = 0.0
        self.job: Candidate
        self._engine, self._budget_s, self._has_final = engine, budget_s, final

    def take_job(self, job: Candidate, training_examples: int) -> None:
        """Take the first process of the job, which started alone, as the measure."""
        self.job, self._training_examples, self._alone_s = job, training_examples, job.start_s
        self._starts_s = [_SIDE_BY_SIDE * self._alone_s / min(usable_cores(), WAVE)]

    @property
    def left_s(self) -> float:
        """Return the seconds until the budget is spent."""
        return self.ends - time.monotonic()

    def note_starts(self, begun: float, count: int) -> None:
        """Note that ``count`` processes have started since ``begun``."""
        self._starts_s.append((time.monotonic() - begun) / count)

    def note_beside(self, job: Sequence[Candidate], others: Sequence[Candidate]) -> None:
        """Note how long those that started beside the job as it is would start alone."""
        beside_s = statistics.fmean(candidate.start_s for candidate in job)
        # The first start of all also reads programs from disk, or met a busy moment.
        self._alone_s = min(self._alone_s, beside_s)
        for candidate in (*job, *others):
            if candidate.alive:
                candidate.alone_s = candidate.start_s * self._alone_s / beside_s

    def process_s(self, rounds: int) -> float:
        """Return about how long one more process takes: its start and ``rounds`` turns."""
        return statistics.fmean(self._starts_s) + self._engine.left_s([self.job], rounds)

    def trainings_s(self, count: float) -> float:
        """Return about how long ``count`` whole trainings of the job take, several at a time."""
        each_s = self.longest_training_s
        each_s = each_s or _TRAINING_SLOWER * self.job.training_s(self._training_examples)
        return count * each_s / min(self._engine.trainings_at_once, 2)

    @property
    def final_s(self) -> float:
        """Return about how long the smallest final takes, whose processes start side by side."""
        if not self._has_final:
            return 0.0
        count = 2 * LEAST_PROCESSES
        start_s = max(count * statistics.fmean(self._starts_s), _BESIDE_OTHERS * self._alone_s)
        return start_s + self._engine.left_s([self.job] * count, FINAL_ROUNDS)

    def budget_for(self, trainings: float) -> int:
        """Return the budget that has room for a number of whole trainings and the final."""
        needed_s = (self.final_s + self.trainings_s(trainings)) / (1 - _LEAST_RACES)
        return 10 * math.ceil(needed_s / 10)

    def longer_budget(self) -> str:
        """Return in words the budget to give instead, by the times measured."""
        longer_s = max(self.budget_for(2), 10 * math.ceil(self._budget_s / 10 + 1))
        return f"a budget of about {longer_s} s trains it and the job as it is"

    def races_end(self, trainings: float) -> float:
        """Return when the races must end, for the final and the whole trainings after them."""
        follows_s = self.final_s + (self.trainings_s(trainings) if trainings else 0.0)
        most = _MOST_RACES if self._has_final else 1.0
        share = min(max(1 - follows_s / self._budget_s, _LEAST_RACES), most)
        return self.began + share * self._budget_s
