"""Search for the fastest chain: race single changes, grow what helps, confirm what comes out.

All processes take turns in one engine. A race only drops what is clearly behind, since processes
of one program differ by some percent; the verdict comes from a final of several new processes a
side. What trains other weights is trained whole, beside the job as it is, before it may win.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tfopt.errors import UserError, require_count, require_one_of, require_switch
from tfopt.export.parity import require_drop
from tfopt.job.cgroup import usable_cores
from tfopt.job.transform import Chain
from tfopt.measure.bench import REFERENCE
from tfopt.measure.bench_plan import LATE_S, require_budget
from tfopt.measure.engine import LATE, Candidate, Engine, compared, copies, shared_rounds
from tfopt.measure.job_facts import JobFacts
from tfopt.measure.rows import Row
from tfopt.measure.scores import READINGS, TrainWhole
from tfopt.measure.targets import Target
from tfopt.measure.trainings import MAX_DROP, UNPAIRED, Order, quality, train
from tfopt.report.bench_report import Objective, Quality, is_time
from tfopt.report.statistics import Comparison
from tfopt.report.training import lowest_final_accuracy
from tfopt.train.out_of_memory import is_lack_of_memory
from tfopt.tune.objective import OBJECTIVES, in_words, verdict_in_words
from tfopt.tune.space import (
    Changes,
    Rate,
    narrowed,
    neighbours,
    require_space,
    singles,
    space_for,
    together,
)

INTERRUPTED = "it was interrupted"
_FINAL_PROCESSES = 5
_LEAST_PROCESSES = 4  # a side; with a runner-up too
_LEAST_ROUNDS, _FINAL_ROUNDS, _MOST_FINAL_ROUNDS = 4, 6, 30
_RACE_ROUNDS = (3, 3, 3)
_BEHIND = (1.3, 1.2, 1.15)  # of the best's value, after so many rounds: out of the race
_HARMS = 1.15  # of the job's value, alone: not tried again beside others
_GAIN = 0.98  # of the best's value, to take its place
_LONG_CALL_S = 0.3
_PAIRED = 4  # of the best single changes, each with each
_WAVE = 12  # of settings that race at once
_LEAST_RACES, _MOST_RACES = 0.45, 0.75  # of the budget
_BESIDE_OTHERS = 2.0  # times as long as alone takes one of some that compile beside each other
_SIDE_BY_SIDE = 1.2  # what starting beside others takes, each on its core
_STARTING_SHARE = 0.65  # of the time left for races, for starting the processes of one
# Than its steps in turns: it is evaluated, and runs beside others. Higher than in a
# bench, since one that does not fit is not begun here, while there it only ends later.
_TRAINING_SLOWER = 2.0
_LOST_AT_ONCE = 2  # times what may be lost, with one seed


@dataclass(eq=False)
class Trial(Row):
    """A setting with its process in the races, then with those of the final.

    Attributes:
        value: The objective over that of the job as it is, in its last race.
        beaten: By how much it was behind in a race.
        lost: Why it may not win though it is fast.
    """

    setting: Changes = Changes()  # noqa: RUF009 (frozen)
    racer: Candidate = field(init=False)
    final: list[Candidate] = field(default_factory=list)
    value: float = math.inf
    beaten: str = ""
    lost: str = ""

    def __post_init__(self) -> None:
        self.racer = Candidate(self.variant)  # none has started


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
        self.trials: dict[Changes, Trial] = {}
        self.stopped = ""
        self.untried: list[Changes] = []
        self.confirmed: Comparison | None = None
        self.quality: Quality | str = ""
        self.facts: JobFacts
        self._training_s = 0.0
        """The longest whole training so far."""
        self._lasted_s: list[float] = []
        """What starting one process took, by those that started."""

    def run(self, engine: Engine) -> None:
        """Search until nothing is left to try or the budget is spent."""
        self._began = time.monotonic()
        self._ends = self._began + self.budget_s
        self._engine, self._display = engine, engine.display
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
        variant = Target(REFERENCE, self.target.job, Chain(), self.target.arguments)
        self.plain = self.chosen = self.best = Trial(variant)
        self.trials[self.plain.setting] = self.plain
        (self.plain.racer,) = self._engine.admit([variant], look=True)
        self.plain.take(self.plain.racer, self._engine)
        self._require_plain()
        assert self.plain.ready is not None
        assert self.plain.ready.facts is not None
        self.facts = self.plain.ready.facts
        if self.objective == "training" and self.facts.steps_per_epoch is None:
            raise UserError(
                "The time of a whole training needs its length.",
                expected="a data set of known length, or Job.steps_per_epoch",
                received="a data set of unknown length",
                fix='set Job.steps_per_epoch, or tune with objective="step"',
            )
        self._engine.take_rounds([self.plain.racer], 2, doing="the job as it is")
        self._require_plain()
        self._alone_s = self.plain.racer.start_s
        self._lasted_s.append(_SIDE_BY_SIDE * self._alone_s / min(usable_cores(), _WAVE))
        exact = self.exact or not self._may_confirm()
        self._values = narrowed(space_for(self.facts), self.space, exact=exact)

    def _require_plain(self) -> None:
        """Raise if the process of the job as it is has ended."""
        if self.plain.racer.out:
            raise UserError("The job as it is cannot be trained.", received=self.plain.racer.out)

    def _may_confirm(self) -> bool:
        """Return whether other weights can be confirmed, and say why not."""
        why = None
        if not self.seeds:
            return True
        if not self.facts.tested:
            why = "There is no test accuracy to confirm other weights by"
        elif self._budget_s(2) > self.budget_s:
            why = (
                "Other weights are confirmed by two whole trainings, which need a budget of about "
                f"{self._budget_s(2)} s"
            )
        if why is not None:
            why += ": only what trains the same weights is tried; seeds=0 tries all, unconfirmed."
            self.remarks += (why,)
            self._display.say(why)
        return why is None

    def _trainings_s(self, count: float) -> float:
        """Return about how long so many whole trainings of the job take, several at a time."""
        alone_s = self.plain.racer.training_s(self.facts.training_examples)
        each_s = self._training_s or _TRAINING_SLOWER * alone_s
        return count * each_s / min(self._engine.trainings_at_once, 2)

    def _budget_s(self, trainings: float) -> int:
        """Return the budget that has room for so many whole trainings and the final."""
        needed_s = (self._final_s + self._trainings_s(trainings)) / (1 - _LEAST_RACES)
        return 10 * math.ceil(needed_s / 10)

    def _value(self, candidate: Candidate, rounds: Iterable[int] | None = None) -> float:
        """Return the objective of one process."""
        if not is_time(self.objective):
            return self._taken(candidate)
        if self.objective == "step" or self.facts.epoch_examples is None:
            return candidate.example_s(rounds)
        return candidate.training_s(self.facts.training_examples, rounds)

    def _note_starts(self, plain: Sequence[Candidate], others: Iterable[Candidate]) -> None:
        """Note how long those that started beside the job as it is would start alone."""
        beside_s = statistics.fmean(candidate.start_s for candidate in plain)
        for candidate in (*plain, *others):
            if candidate.alive:
                candidate.alone_s = candidate.start_s * self._alone_s / beside_s

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

    def _race_all(self) -> None:
        """Race every single change; then combinations, each against the best so far."""
        waiting, what = self._sensible(singles(self._values)), "single changes"
        while True:
            if not waiting:
                waiting, what = self._sensible(self._combinations()), "combinations"
            if not waiting:
                return
            affordable = int(
                (self._races_end - time.monotonic()) / self._process_s(1 + sum(_RACE_ROUNDS[:2]))
            )
            if affordable < 1:
                break
            wave = waiting[: min(affordable, _WAVE)]
            raced = self._race(wave, what)
            if not raced:
                break
            waiting = waiting[raced:]
        self.untried = waiting
        self.stopped = self.stopped or "the time for races was over"

    def _combinations(self) -> list[Changes]:
        """Return what may beat the best: pairs of the best single changes, then its neighbours."""
        alone = [trial for trial in self.trials.values() if len(trial.setting.alone()) == 1]
        helped = sorted((t for t in alone if t.value < 1), key=lambda t: t.value)
        pairs = [
            pair
            for one, other in itertools.combinations(helped[:_PAIRED], 2)
            if (pair := together(one.setting, other.setting)) is not None
        ]
        harms = [t.setting for t in alone if t.value > _HARMS or t.reason]
        near = [
            setting
            for setting in neighbours(self.best.setting, self._values)
            if not any(harm in setting.alone() for harm in harms)
        ]
        gains = {t.setting: t.value for t in alone}

        def promise(setting: Changes) -> float:
            """Return the product of what the single changes brought."""
            return math.prod(gains.get(single, 1.0) for single in setting.alone())

        new = dict.fromkeys(setting for setting in (*pairs, *near) if setting not in self.trials)
        return sorted(new, key=promise)[:_WAVE]

    def _sensible(self, settings: Iterable[Changes]) -> list[Changes]:
        """Leave out settings that were tried, and more steps per call than can gain anything."""
        example_s = self.plain.racer.example_s()

        def call_s(setting: Changes) -> float:
            batch = setting.batch_size or self.facts.batch_size
            return example_s * batch * (setting.steps_per_execution or 1)

        found = [s for s in settings if s.steps_per_execution is None or call_s(s) <= _LONG_CALL_S]
        # Another batch is fed by a pipeline already: that change beside it is no other chain.
        tried = {repr(trial.variant.chain) for trial in self.trials.values()}
        new = {repr(setting.chain(self.facts)): setting for setting in reversed(found)}
        return [setting for chain, setting in reversed(new.items()) if chain not in tried]

    def _race(self, settings: Sequence[Changes], what: str) -> int:
        """Race these with the best so far and the job as it is; return how many were started."""
        begun, ends = time.monotonic(), self._races_end
        # A process that starts late would get no turns.
        until = begun + _STARTING_SHARE * (ends - begun)
        trials = self._admit(settings, until, ends)
        if trials:
            self._take_race_turns(trials, what, ends)
        less = [replace(t.setting, remat=True) for t in trials if is_lack_of_memory(t.reason or "")]
        again = [setting for setting in less if setting not in self.trials]
        if again:
            self._race(again, "less memory")
        return len(trials)

    @property
    def _races_end(self) -> float:
        """Return when the races must end for what follows them."""
        follows = self._final_s
        if not self.exact and self.seeds and self.facts.tested:
            # Of the job as it is, and of what is fast with each learning rate and each seed.
            quick = min(self.best.value, 1.0) * (self.seeds + 1)
            follows += self._trainings_s(self.seeds + quick)
        most = _MOST_RACES if self.final else 1.0
        share = min(max(1 - follows / self.budget_s, _LEAST_RACES), most)
        return self._began + share * self.budget_s

    @property
    def _final_s(self) -> float:
        """Return about how long the smallest final takes, whose processes start side by side."""
        if not self.final:
            return 0.0
        count = 2 * _LEAST_PROCESSES
        start_s = max(count * statistics.fmean(self._lasted_s), _BESIDE_OTHERS * self._alone_s)
        return start_s + self._engine.left_s([self.plain.racer] * count, _FINAL_ROUNDS)

    def _process_s(self, rounds: int) -> float:
        """Return about how long one more process takes: its start and so many turns."""
        return statistics.fmean(self._lasted_s) + self._engine.left_s([self.plain.racer], rounds)

    def _admit(self, settings: Sequence[Changes], until: float, ready_by: float) -> list[Trial]:
        """Start a process of each, as many as memory holds, beside one of the job as it is."""
        variants = [self.plain.variant, *map(self._variant, settings)]
        begun = time.monotonic()
        admit = partial(self._engine.admit, until=until, ready_by=ready_by)
        started = admit(variants)
        plain = [candidate for candidate in started[:1] if candidate.out != LATE]
        for candidate in plain:
            self._take(self.plain, candidate)
            if candidate.alive:
                self._drop(self.plain)
                self.plain.racer = candidate
        if len(started) == 1:  # there may be room now
            started += admit(variants[1:])
        candidates = started[1:]
        if candidates:
            self._lasted_s.append((time.monotonic() - begun) / len(started))
            if plain and plain[0].alive:
                self._note_starts(plain, candidates)
        elif time.monotonic() < until:
            if len(self.trials) == 1:
                raise self._engine.no_room()
            self.stopped = "there was no memory for one more process"
        found = []
        for setting, candidate in zip(settings, candidates, strict=False):
            trial = self._trial(setting)
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

    def _variant(self, setting: Changes) -> Target:
        chain = setting.chain(self.facts)
        return Target(str(setting), self.target.job, chain, self.target.arguments, chain.parts)

    def _trial(self, setting: Changes) -> Trial:
        made = Trial(self._variant(setting), self.plain, setting=setting)
        return self.trials.setdefault(setting, made)

    def _take_race_turns(self, trials: Sequence[Trial], what: str, ends: float) -> None:
        """Give turns, and drop the trials that fall clearly behind."""
        racing = [t for t in dict.fromkeys([self.plain, self.best, *trials]) if t.racer.alive]
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

    # Other weights.

    def _finalists(self) -> list[Trial]:
        """Return the winner and the runner-up that may win: same weights, or as good ones."""
        self._drop(self.best)
        ranked = sorted(
            (t for t in self.trials.values() if t is not self.plain and t.value < math.inf),
            key=lambda t: t.value,
        )
        ranked = [t for t in ranked if t.value < 1]
        lost: list[Changes] = []
        for trial in ranked:
            if any(setting.trains_as(trial.setting) for setting in lost):
                continue
            winner = self._as_good(trial)
            if winner is None:
                lost.append(trial.setting)
                continue
            kin = [t for t in ranked if t is not trial and t.setting.trains_as(trial.setting)]
            rate = winner.setting.learning_rate
            others = [self._trial(replace(other.setting, learning_rate=rate)) for other in kin[:1]]
            for other in others:
                other.trainings = winner.trainings  # it trains the same weights
            return [winner, *others]
        return []

    def _as_good(self, trial: Trial) -> Trial | None:
        """Return a trial, maybe with another learning rate, that loses no accuracy; else None."""
        if trial.variant.exact:
            return trial
        if trial.lost:
            return None
        if not self.seeds:
            self.quality = "not confirmed: no whole training was asked for"
            return trial
        rates = self._rates(trial)
        if not rates:
            trial.lost = f"no time was left to train it whole; {self._longer()}"
            return None
        tried = [self._trial(replace(trial.setting, learning_rate=rate)) for rate in rates]
        for other in tried:
            other.value = trial.value  # its steps are the same
        self._train([self.plain, *tried], seeds=[0])
        good = [other for other in tried if self._loses(other, _LOST_AT_ONCE) is None]
        # The seed that a rate was chosen by says too much good of it.
        first = 1 if len(good) > 1 and self.seeds > 1 else 0
        for best in sorted(good, key=self._promise):
            self._train([self.plain, best], seeds=list(range(1, self.seeds)))
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
        if trial.setting.batch_size is not None and self.facts.rule is not None:
            rates = ["cosine", "fast"] if self.facts.rate else [None, "cosine"]
        fit = (self._ends - self._final_s - time.monotonic()) / self._trainings_s(1)
        own = min(trial.value, 1.0)  # as a share of a training of the job as it is
        needed = own + (not self.plain.trainings.done)
        if fit < needed:
            return []
        # Two rates take a training more, and both sides with another seed.
        return rates if self.seeds <= 1 or fit >= needed + 2 * own + 1 else rates[:1]

    def _train(self, trials: Sequence[Trial], seeds: Sequence[int]) -> None:
        readings = READINGS if self.objective == "time-to-accuracy" else 1
        orders = [
            Order(trial.variant, seed, trial.trainings, TrainWhole(readings=readings))
            for seed in seeds
            for trial in trials
            if seed not in {done.seed for done in trial.trainings.done}
        ]
        until = self._ends - self._final_s - self._trainings_s(1)
        at_once = self._engine.trainings_at_once
        longest_s = train(orders, self._display, at_once=at_once, until=until)
        self._training_s = max(self._training_s, longest_s)

    def _quality(self, trial: Trial, first: int = 0) -> Quality | str:
        """Compare the trainings of a trial and of the job as it is, from a seed on."""
        plain, own = (
            replace(side, done=tuple(made for made in side.done if made.seed >= first))
            for side in (self.plain.trainings, trial.trainings)
        )
        return quality(plain, own, self.max_drop)

    def _loses(self, trial: Trial, times: float, first: int = 0) -> str | None:
        """Return what whole trainings say against a trial, or None."""
        found = self._quality(trial, first)
        if isinstance(found, str):
            longer = f"; {self._longer()}" if found == UNPAIRED else ""
            return f"its quality is not known: {found}{longer}"
        if found.points < -self.max_drop * times:
            return f"it loses {-found.points:.2f} points of accuracy (seeds: {len(found.seeds)})"
        return None

    def _longer(self) -> str:
        """Return the budget to give instead, by the times measured."""
        longer_s = max(self._budget_s(2), 10 * math.ceil(self.budget_s / 10 + 1))
        return f"a budget of about {longer_s} s trains it and the job as it is"

    def _promise(self, trial: Trial) -> float:
        """Return what the best learning rate minimizes: steps to the accuracy, or what it lacks."""
        first = trial.trainings.done[0]
        if self.objective != "time-to-accuracy":
            return -(first.test_accuracy or 0.0)
        target = lowest_final_accuracy(self.plain.trainings.done)
        steps = first.steps_to(target) if target is not None else None
        return math.inf if steps is None else steps

    # The final.

    def _final(self, finalists: Sequence[Trial]) -> None:
        """Measure new processes of the job as it is, the winner and the runner-up by turns."""
        left_s = self._ends - time.monotonic()
        for sides in ([self.plain, *finalists], [self.plain, finalists[0]]):
            count = int(left_s / (len(sides) * self._process_s(_FINAL_ROUNDS)))
            if count >= _LEAST_PROCESSES:
                break
        for trial in finalists[len(sides) - 1 :]:
            trial.lost = "no time was left for its final"
        count = min(max(count, _LEAST_PROCESSES), _FINAL_PROCESSES)
        # One of each side after the other: time may end it.
        wanted = [copies(trial.variant, count) for trial in sides]
        in_turn = [variant for several in zip(*wanted, strict=True) for variant in several]
        started = self._engine.admit(in_turn, until=self._ends + LATE_S / 2)
        for trial, candidate in zip(itertools.cycle(sides), started):
            trial.final.append(candidate)
            self._take(trial, candidate)
        taking = [candidate for trial in sides for candidate in trial.final]
        # What has started is not given up for the seconds that its turns take.
        least_until = max(self._ends, time.monotonic()) + LATE_S
        self._engine.take_rounds(taking, _LEAST_ROUNDS, until=least_until, doing="the final")
        more = _MOST_FINAL_ROUNDS - _LEAST_ROUNDS
        self._engine.take_rounds(taking, more, until=self._ends, doing="the final")
        self._judge(sides)

    def _judge(self, sides: Sequence[Trial]) -> None:
        """Choose the fastest of the final that is certainly faster than the job as it is."""
        ends = [t for t in sides if t is not self.plain]
        plain = [candidate for candidate in self.plain.final if candidate.alive]
        if plain:
            self._note_starts(plain, [candidate for trial in ends for candidate in trial.final])
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
