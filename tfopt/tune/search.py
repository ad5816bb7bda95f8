"""Search for the fastest chain: race single changes, grow what helps, confirm what comes out.

All processes take turns in one engine. A race only drops what is clearly behind, since processes
of one program differ by some percent; the verdict comes from a final of several new processes a
side. What trains other weights is trained whole, beside the job as it is, before it may win.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tfopt.errors import UserError, require_count, require_one_of, require_switch
from tfopt.export.parity import require_drop
from tfopt.measure.bench_plan import LATE_S, require_budget
from tfopt.measure.engine import LATE, Candidate, Engine, compared, copies, shared_rounds
from tfopt.measure.targets import Target
from tfopt.measure.trainings import MAX_DROP
from tfopt.report.bench_report import Objective, Quality, is_time
from tfopt.report.statistics import Comparison
from tfopt.train.out_of_memory import is_lack_of_memory
from tfopt.tune.confirmation import Confirmation
from tfopt.tune.objective import OBJECTIVES, in_words, verdict_in_words
from tfopt.tune.space import (
    Changes,
    narrowed,
    neighbours,
    require_space,
    singles,
    space_for,
    together,
)
from tfopt.tune.time_left import FINAL_ROUNDS, LEAST_PROCESSES, WAVE, TimeLeft
from tfopt.tune.trial import Trial, Trials

INTERRUPTED = "it was interrupted"
_FINAL_PROCESSES = 5
_LEAST_ROUNDS, _MOST_FINAL_ROUNDS = 4, 30
_RACE_ROUNDS = (3, 3, 3)
_BEHIND = (1.3, 1.2, 1.15)  # of the best's value, after these rounds: out of the race
_HARMS = 1.15  # of the job's value, alone: not tried again beside others
_GAIN = 0.98  # of the best's value, to take its place, or of the job's, to be chosen
_LONG_CALL_S = 0.3
_PAIRED = 4  # of the best single changes, each with each
_STARTING_SHARE = 0.65  # of the time left for races, for starting the processes of one


@dataclass(eq=False)
class Search:
    """A search with what it is asked for, as :func:`tfopt.tune` takes it.

    ``chosen`` is the job as it is until something is certain, and ``remarks`` are reported.
    """

    target: Target
    budget_s: float
    objective: Objective = "training"
    exact: bool = False
    space: Mapping[str, Sequence[Any]] | None = None
    seeds: int = 3
    max_drop: float = MAX_DROP
    final: bool = True
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_budget(self.budget_s)
        require_one_of("objective", self.objective, OBJECTIVES)
        require_switch("exact", self.exact)
        require_switch("final", self.final)
        require_space(self.space or {})
        require_count("seeds", self.seeds, minimum=0)
        require_drop(self.max_drop)
        self.trials = Trials(self.target)
        self.plain = self.chosen = self.best = self.trials.plain
        self.stopped = ""
        self.untried: list[Changes] = []
        self.confirmed: Comparison | None = None
        self.quality: Quality | str = ""

    def run(self, engine: Engine) -> None:
        """Search until nothing is left to try or the budget is spent."""
        self._engine, self._display = engine, engine.display
        self._time = TimeLeft(engine, self.budget_s, final=self.final)
        try:
            self._look()
            self._race_all()
            finalists = self._finalists()
            if finalists and self.final:
                self._final(finalists)
            elif finalists:
                self.chosen = finalists[0]
        except KeyboardInterrupt:
            if self.plain.racer.ready is None:
                raise  # nothing was measured
            self.stopped = INTERRUPTED
            self._judge([trial for trial in self.trials.values() if trial.final])

    # The job as it is.

    def _look(self) -> None:
        """Start the job as it is, and decide what can be tried."""
        (self.plain.racer,) = self._engine.admit([self.plain.variant], look=True)
        self.plain.take(self.plain.racer, self._engine)
        self._require_plain()
        assert self.plain.ready is not None
        assert self.plain.ready.facts is not None
        self.facts = self.trials.facts = self.plain.ready.facts
        if self.objective == "training" and self.facts.steps_per_epoch is None:
            raise UserError(
                "The time of a whole training needs its length.",
                expected="a data set of known length, or Job.steps_per_epoch",
                received="a data set of unknown length",
                fix='set Job.steps_per_epoch, or tune with objective="step"',
            )
        self._engine.take_rounds([self.plain.racer], 2, doing="the job as it is")
        self._require_plain()
        self._time.take_job(self.plain.racer, self.facts.training_examples)
        self._only_exact = self.exact or not self._may_confirm()
        self._values = narrowed(space_for(self.facts), self.space, exact=self._only_exact)

    def _require_plain(self) -> None:
        """Raise if the process of the job as it is has ended."""
        if self.plain.racer.out:
            raise UserError("The job as it is cannot be trained.", received=self.plain.racer.out)

    def _may_confirm(self) -> bool:
        """Return whether other weights can be confirmed, and say why not."""
        if not self.seeds:
            return True
        if not self.facts.tested:
            why = "There is no test accuracy to confirm other weights by"
        elif (needed_s := self._time.budget_for(2)) > self.budget_s:
            why = (
                "Other weights are confirmed by two whole trainings, which need a budget of about "
                f"{needed_s} s"
            )
        else:
            return True
        why += ": only what trains the same weights is tried; seeds=0 (--seeds 0 on the command "
        why += "line) tries all, unconfirmed."
        self.remarks += (why,)
        self._display.say(why)
        return False

    def _value(self, candidate: Candidate, rounds: Iterable[int] | None = None) -> float:
        """Return the objective of one process."""
        if not is_time(self.objective):
            return self._taken(candidate)
        if self.objective == "step" or self.facts.epoch_examples is None:
            return candidate.example_s(rounds)
        return candidate.training_s(self.facts.training_examples, rounds)

    def _taken(self, candidate: Candidate) -> float:
        """Return the memory or the energy that a process has taken."""
        process = candidate.timed()
        memory = process.host_peak_mib if process.gpu_peak_mib is None else process.gpu_peak_mib
        found = memory if self.objective == "memory" else process.energy_per_example_j
        if found is None:
            raise UserError(
                f"The {self.objective} cannot be measured here.",
                expected="figures of the driver or the system",
                received=process.unavailable.get("energy_per_example_j", "none"),
                fix='another objective, such as objective="training"',
            )
        return found

    # The races.

    @property
    def _races_end(self) -> float:
        """Return when the races must end for what follows them."""
        trainings = 0.0
        if self.seeds and not self._only_exact:
            # Of the job as it is, and of what is fast with each learning rate and each seed.
            trainings = self.seeds + min(self.best.value, 1.0) * (self.seeds + 1)
        return self._time.races_end(trainings)

    def _race_all(self) -> None:
        """Race every single change; then combinations, each against the best so far."""
        waiting, what = self._sensible(singles(self._values)), "single changes"
        while True:
            if not waiting:
                waiting, what = self._sensible(self._combinations()), "combinations"
            if not waiting:
                break
            process_s = self._time.process_s(1 + sum(_RACE_ROUNDS[:2]))
            affordable = int((self._races_end - time.monotonic()) / process_s)
            raced = self._race(waiting[: min(affordable, WAVE)], what) if affordable > 0 else 0
            if raced:
                waiting = waiting[raced:]
            elif self.best.variant.chain.exact and not self._only_exact and not self.stopped:
                # Nothing is to be trained whole: that time is left for what needs no training.
                self._only_exact = True
                exact = self._sensible(waiting)
                self.untried += [setting for setting in waiting if setting not in exact]
                waiting = exact
            else:
                break
        self.untried += waiting
        if self.untried:
            self.stopped = self.stopped or "the time for races was over"

    def _combinations(self) -> list[Changes]:
        """Return what may beat the best: pairs of the best single changes, then its neighbours."""
        alone = [trial for trial in self.trials.values() if len(trial.setting.alone()) == 1]
        helped = sorted(
            (trial for trial in alone if trial.value < 1), key=lambda trial: trial.value
        )
        pairs = [
            pair
            for one, other in itertools.combinations(helped[:_PAIRED], 2)
            if (pair := together(one.setting, other.setting)) is not None
        ]
        harms = [trial.setting for trial in alone if trial.value > _HARMS or trial.reason]
        near = [
            setting
            for setting in neighbours(self.best.setting, self._values)
            if not any(harm in setting.alone() for harm in harms)
        ]
        gains = {trial.setting: trial.value for trial in alone}

        def promise(setting: Changes) -> float:
            """Return the product of what the single changes brought."""
            return math.prod(gains.get(single, 1.0) for single in setting.alone())

        new = dict.fromkeys(setting for setting in (*pairs, *near) if setting not in self.trials)
        return sorted(new, key=promise)[:WAVE]

    def _sensible(self, settings: Iterable[Changes]) -> list[Changes]:
        """Leave out settings that were tried, and more steps per call than can gain anything."""
        example_s = self.plain.racer.example_s()

        def call_s(setting: Changes) -> float:
            batch = setting.batch_size or self.facts.batch_size
            return example_s * batch * (setting.steps_per_execution or 1)

        found = [
            setting
            for setting in settings
            if setting.steps_per_execution is None or call_s(setting) <= _LONG_CALL_S
        ]
        # Another batch is fed by a pipeline already: that change beside it is no other chain.
        tried = {repr(trial.variant.chain) for trial in self.trials.values()}
        chains = {setting: setting.chain(self.facts) for setting in reversed(found)}
        new = {
            repr(chain): setting
            for setting, chain in chains.items()
            if chain.exact or not self._only_exact
        }
        return [setting for chain, setting in reversed(new.items()) if chain not in tried]

    def _race(self, settings: Sequence[Changes], what: str) -> int:
        """Race these with the best so far and the job as it is; return how many were started."""
        begun, ends = time.monotonic(), self._races_end
        # A process that starts late would get no turns.
        until = begun + _STARTING_SHARE * (ends - begun)
        trials = self._admit(settings, until, ends)
        if trials:
            self._take_race_turns(trials, what, ends)
        lacking = [trial for trial in trials if is_lack_of_memory(trial.reason or "")]
        less = [replace(trial.setting, remat=True) for trial in lacking]
        again = [setting for setting in less if setting not in self.trials]
        if again:
            self._race(again, "less memory")
        return len(trials)

    def _admit(self, settings: Sequence[Changes], until: float, ready_by: float) -> list[Trial]:
        """Start a process of each, as many as memory holds, beside one of the job as it is."""
        variants = [self.plain.variant, *map(self.trials.variant, settings)]
        begun = time.monotonic()
        admit = partial(self._engine.admit, until=until, ready_by=ready_by)
        started = admit(variants)
        plain = [candidate for candidate in started[:1] if candidate.out != LATE]
        for candidate in plain:
            self._take(self.plain, candidate)
            if candidate.alive:
                self._drop(self.plain)
                self.plain.racer = self._time.job = candidate
        if len(started) == 1:  # there may be room now
            started += admit(variants[1:])
        candidates = started[1:]
        if candidates:
            self._time.note_starts(begun, len(started))
            if plain and plain[0].alive:
                self._time.note_beside(plain, candidates)
        elif time.monotonic() < until:
            if len(self.trials) == 1:
                raise self._engine.no_room()
            self.stopped = "there was no memory for one more process"
        found = []
        for setting, candidate in zip(settings, candidates, strict=False):
            trial = self.trials.of(setting)
            trial.racer = candidate
            self._take(trial, candidate)
            found.append(trial)
        return found

    def _take(self, trial: Trial, candidate: Candidate) -> None:
        trial.take(candidate, self._engine)
        if trial is self.plain and trial.status == "failed" and not candidate.out:
            raise UserError(
                "The job has other data in each process.",
                expected="the same data each time it is made",
                received=trial.reason,
                fix="draw the data by a seed",
            )

    def _take_race_turns(self, trials: Sequence[Trial], what: str, ends: float) -> None:
        """Give turns, and drop the trials that fall clearly behind."""
        sides = dict.fromkeys([self.plain, self.best, *trials])
        racing = [trial for trial in sides if trial.racer.alive]
        first = self._engine.round
        until = math.inf
        for rounds, behind in zip(_RACE_ROUNDS, _BEHIND, strict=True):
            racers = [trial.racer for trial in racing]
            self._engine.take_rounds(racers, rounds, until=until, doing=f"racing {what}")
            until = ends
            self._require_plain()
            racing = [trial for trial in racing if trial.racer.alive]
            if self.best not in racing:
                self.best.value, self.best = math.inf, self.plain
            self._rate(racing, first)
            leader = min(racing, key=lambda trial: trial.value)
            for trial in list(racing):
                if trial.value > behind * leader.value and trial not in (self.plain, self.best):
                    racing.remove(trial)
                    self._drop(trial, leader)
        if leader is not self.best and leader.value < _GAIN * self.best.value:
            if self.best is not self.plain:
                self._drop(self.best)
            self.best = leader
            found = in_words(self.objective, leader.value)
            self._display.say(f"best so far: {leader.setting}, {found}")
        for trial in racing:
            if trial not in (self.plain, self.best):
                self._drop(trial, self.best)

    def _rate(self, trials: Sequence[Trial], first: int) -> None:
        """Note the values of those that race, over the rounds since ``first`` that all were in."""
        shared = shared_rounds(trial.racer for trial in trials)
        rounds = [number for number in shared if number >= first]
        if not rounds:
            return
        plain = self._value(self.plain.racer, rounds)
        for trial in trials:
            trial.value = self._value(trial.racer, rounds) / plain
            if trial is not self.plain:
                found = in_words(self.objective, trial.value)
                trial.notes = (f"raced by one process: {found}",)

    def _drop(self, trial: Trial, leader: Trial | None = None) -> None:
        """End a trial's process, behind ``leader`` if one is given; its figures stay."""
        if leader is not None:
            behind = in_words(self.objective, trial.value / leader.value)
            trial.beaten = f"beside {leader.setting}, {behind}"
        self._engine.dismiss([trial.racer])

    # Finalists and the final.

    def _finalists(self) -> list[Trial]:
        """Return the winner and the runner-up that may win: same weights, or as good ones."""
        self._drop(self.best)
        confirmation = Confirmation(
            self.trials, self._time, self._engine, self.objective, self.seeds, self.max_drop
        )
        faster = [trial for trial in self.trials.values() if trial.value < _GAIN]
        # The best has met the others; values of several races differ by what else ran.
        ranked = sorted(faster, key=lambda trial: (trial is not self.best, trial.value))
        lost: list[Changes] = []
        for trial in ranked:
            if any(setting.trains_as(trial.setting) for setting in lost):
                continue
            winner = confirmation.as_good(trial)
            self.quality = confirmation.quality
            if winner is None:
                lost.append(trial.setting)
                continue
            kin = [t for t in ranked if t is not trial and t.setting.trains_as(trial.setting)]
            if not kin:
                return [winner]
            rate = winner.setting.learning_rate
            second = self.trials.of(replace(kin[0].setting, learning_rate=rate))
            second.trainings = winner.trainings  # it trains the same weights
            return [winner, second]
        return []

    def _final(self, finalists: Sequence[Trial]) -> None:
        """Measure new processes of the job as it is, the winner and the runner-up by turns."""
        processes = self._time.left_s / self._time.process_s(FINAL_ROUNDS)
        for sides in ([self.plain, *finalists], [self.plain, finalists[0]]):
            count = int(processes / len(sides))
            if count >= LEAST_PROCESSES:
                break
        for trial in finalists[len(sides) - 1 :]:
            trial.lost = "no time was left for its final"
        count = min(max(count, LEAST_PROCESSES), _FINAL_PROCESSES)
        # One of each side after the other: time may end it.
        wanted = [copies(trial.variant, count) for trial in sides]
        in_turn = [variant for several in zip(*wanted, strict=True) for variant in several]
        started = self._engine.admit(in_turn, until=self._time.ends + LATE_S / 2)
        for trial, candidate in zip(itertools.cycle(sides), started):
            trial.final.append(candidate)
            self._take(trial, candidate)
        taking = [candidate for trial in sides for candidate in trial.final]
        # What has started is not given up for the seconds that its turns take.
        least_until = max(self._time.ends, time.monotonic()) + LATE_S
        self._engine.take_rounds(taking, _LEAST_ROUNDS, until=least_until, doing="the final")
        more = _MOST_FINAL_ROUNDS - _LEAST_ROUNDS
        self._engine.take_rounds(taking, more, until=self._time.ends, doing="the final")
        self._judge(sides)

    def _judge(self, sides: Sequence[Trial]) -> None:
        """Choose the fastest of the final that is certainly faster than the job as it is."""
        ends = [trial for trial in sides if trial is not self.plain]
        plain = [candidate for candidate in self.plain.final if candidate.alive]
        if plain:
            others = [candidate for trial in ends for candidate in trial.final]
            self._time.note_beside(plain, others)
        for trial in ends:
            found = compared(self.plain.final, trial.final, self._value)
            if found is None:
                left = [candidate.out for candidate in trial.final if candidate.out]
                trial.lost = left[0] if left else "no time or memory was left for its final"
                continue
            trial.candidates, self.plain.candidates = trial.final, self.plain.final
            if found.verdict != "faster":
                words = verdict_in_words(self.objective, found.verdict)
                trial.lost = f"{words} in the final"
            elif self.confirmed is None or found.ratio < self.confirmed.ratio:
                self.chosen, self.confirmed = trial, found
