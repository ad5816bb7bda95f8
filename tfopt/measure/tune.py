"""Find the chain that trains a job fastest on this machine, by racing candidates.

One setting after the other is raced: the best so far and its changes train for a moment each, in
interleaved rounds, and who falls behind drops out. The winner and the runner-up then meet the job
as it is in fresh rounds that had no say in the choice; what changes the weights is trained whole,
with three seeds, beside the job as it is. Nothing is returned that was not measured, and nothing
that is not faster than the job as it is.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from tfopt.errors import UserError, require_count, require_switch, within
from tfopt.job.job import Chain, Job
from tfopt.measure.blocks import BlockStore
from tfopt.measure.comparability import must_stay
from tfopt.measure.display import Display
from tfopt.measure.job_facts import JobFacts, LookAtJob
from tfopt.measure.process import WorkerResult, run_worker
from tfopt.measure.provenance import code_digest, read_provenance
from tfopt.measure.rebatched import reference_of
from tfopt.measure.search_space import (
    EXACT,
    Changes,
    Rate,
    narrowed,
    race_order,
    space_for,
    variants_of,
)
from tfopt.measure.statistics import LEAST_ROUNDS
from tfopt.measure.targets import plain_arguments
from tfopt.measure.tasks import OneBlock, Task, Training
from tfopt.measure.trainings import TOLERANCE_POINTS, Trainings, compare_whole, quality
from tfopt.measure.tuned import (
    FRESH,
    INTERRUPTED,
    LEAST_S,
    SPAN,
    Candidate,
    Found,
    Objective,
    Tuned,
)
from tfopt.measure.variant import Variant
from tfopt.measure.watcher import Watcher
from tfopt.report.block import Block
from tfopt.report.footprint import Comparison
from tfopt.report.training import Figures
from tfopt.train.memory_message import is_lack_of_memory

T = TypeVar("T")

_ROUNDS = 2  # of a race, where there is time for so many of each
_TRIES = 3
_SWEEPS = 2
_BEHIND = 1.1  # of the fastest's time, each at its best: out, and not tried again later
_FAR_BEHIND = 1.25  # the same after one round, for all but the best two
_GAIN = 0.98  # of the time of the best so far, to take its place
_SURELY = 0.85  # of the time: no more rounds are needed
_LOST_AT_ONCE = 2  # times the tolerance, with one seed
_LONG_CALL_MS = 250.0
_START_S = 2.0  # of a whole training, beside the training
_RESERVE = 0.6  # of the budget, at most, for what follows the races


def tune(
    job: str | Callable[..., Job],
    *,
    arguments: Mapping[str, Any] | None = None,
    budget_s: float = 600.0,
    objective: Objective = "training",
    exact: bool = False,
    space: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 3,
    confirm: bool = True,
    tolerance_points: float = TOLERANCE_POINTS,
    anew: bool = False,
    folder: str | Path | None = None,
    verbose: bool = True,
) -> Tuned:
    """Find the chain that trains a job fastest on this machine.

    Every trial is a process of its own. Interrupted (Ctrl-C), the search returns the best that
    was confirmed by then. What was measured is kept in the user's cache under the job, its code,
    the machine and the versions, and is used again.

    Example::

        tuned = tfopt.tune("my_package.train:job", budget_s=300)
        print(tuned)
        tuned.write_recipe("tuned.toml")
        outcome = tfopt.run(tuned.chain.apply(job()))

    Args:
        job: A function that makes the job, ``def job() -> tfopt.Job``, or its name,
            "package.module:job": each process makes it anew.
        arguments: Of that function.
        budget_s: No race begins later, and most of it is left for the confirmation where that
            takes long; a confirmation that has begun is finished.
        objective: What is to be small: "training" is the predicted time of the whole training,
            building and compiling included; "step" the time of an example; "memory" the peak;
            "energy" that of an example; "time-to-accuracy" trains each candidate whole.
        exact: Try only what trains the weights of the job as it is.
        space: Values to try in the place of those found for the job and the machine, by setting:
            ``{"batch_size": [64, 128], "jit_compile": []}``.
        seeds: Whole trainings that confirm a chain that changes the weights; 0: it is returned
            unconfirmed, and the report says so.
        confirm: False leaves out the fresh rounds, where the chain is measured afterwards anyway;
            whole trainings are made all the same.
        tolerance_points: A loss of test accuracy that counts as none, in hundredths.
        anew: Measure again what the cache has.
        folder: Where to keep what was measured, instead of the user's cache.
        verbose: Show each trial, what was found, and what is left of the budget.
    """
    _require(objective, budget_s, exact, seeds, tolerance_points)
    require_switch("confirm", confirm)
    require_switch("verbose", verbose)
    with Display() if verbose else nullcontext(Watcher()) as watcher:
        search = _Search(
            job=reference_of(job, "tune"),
            arguments=plain_arguments(arguments),
            objective=objective,
            budget_s=float(budget_s),
            seeds=seeds,
            tolerance_points=tolerance_points,
            confirms=confirm,
            watcher=watcher,
        )
        search.open(None if folder is None else Path(folder), anew=anew)
        search.look(space, exact=exact)
        try:
            search.race_all()
            search.confirm()
        except KeyboardInterrupt:
            search.stopped = INTERRUPTED
        return search.result()


@dataclass(eq=False, kw_only=True)
class _Search(Found):
    confirms: bool
    watcher: Watcher
    target: float | None = field(init=False, default=None)
    round: int = field(init=False, default=0)
    took_s: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.plain = self._candidate(Changes())
        self.best = self.second = self.chosen = self.plain

    def open(self, folder: Path | None, *, anew: bool) -> None:
        """Prepare the folder of what was measured: the user's cache, or the one that is given."""
        self.provenance = read_provenance()
        plan = {
            **must_stay(self.provenance),
            "job": self.job,
            "arguments": {name: repr(value) for name, value in self.arguments.items()},
            "job's code": code_digest([self.job]),
            "commit": self.provenance.git,
            "span": asdict(SPAN),
        }
        # A folder for each plan: opening one empties it.
        folder = (folder or _cache_folder()) / Variant("", self.job, arguments=plan).digest
        self.store = BlockStore(folder, plan)
        self.store.open(resume=not anew and (folder / "plan.json").exists())

    def look(self, asked: Mapping[str, Sequence[Any]] | None, *, exact: bool) -> None:
        """Build the job once, measure it as it is, and decide what to try."""
        self._doing("looking at it", self.plain)
        result = self._run(LookAtJob(), Chain())
        if result.value is None:
            raise UserError("The job cannot be built.", received=result.reason or "no reason")
        self.seen: JobFacts = result.value
        if self.objective == "training" and self.seen.steps_per_epoch is None:
            raise UserError(
                "The time of a whole training needs its length.",
                expected="a data set of known length, or Job.steps_per_epoch",
                received="a data set of unknown length",
                fix='set Job.steps_per_epoch, or tune with objective="step"',
            )
        narrowed(space_for(self.seen), asked, exact=exact)  # a mistake is told before a trial
        self._one_round([self.plain], "measuring it")
        if self.plain.out:
            raise UserError("The job as it is cannot be measured.", received=self.plain.out)
        self.space = narrowed(space_for(self.seen), asked, exact=exact or not self._may_confirm())

    def _may_confirm(self) -> bool:
        """Return whether other weights can be confirmed, and say why not."""
        why = None
        if self.seeds and not self.seen.tested:
            why = "there is no test accuracy to confirm other weights by"
        elif self._trainings_s() > _RESERVE * self.budget_s:
            why = (
                f"{2 * self.seeds} whole trainings to confirm other weights take about "
                f"{self._trainings_s():.0f} s, more than {_RESERVE:.0%} of the budget"
            )
        if why is not None:
            self.remarks.append(
                f"{why}: only what trains the same weights is tried; seeds=0 tries all, unconfirmed"
            )
            self.watcher.found(self.remarks[-1])
        return why is None

    @property
    def left_s(self) -> float:
        return self.began + self.budget_s - time.monotonic()

    def _trainings_s(self) -> float:
        """Return the seconds that the whole trainings at the end may take."""
        whole_s = 0.0
        if self.plain.blocks:
            whole_s = statistics.median(predicted_training_s(self.seen, self.plain.blocks[0]))
        elif self.objective == "time-to-accuracy":
            whole_s = self.plain.best()
        return 2 * self.seeds * (_START_S + whole_s)

    def _reserve_s(self) -> float:
        fresh = 3 * FRESH.at_least * self._pace_s() if self.confirms else 0.0
        return min(_RESERVE * self.budget_s, fresh + self._trainings_s())

    def _pace_s(self) -> float:
        return statistics.fmean(self.took_s)

    # The races.

    def race_all(self) -> None:
        """Race every setting by itself; with time left, once more in batches of the job's size.

        What a larger batch makes slower, XLA for instance, may make small ones the fastest.
        """
        axes = [axis for axis in race_order(self.seen) if len(self.space[axis]) > 1]
        # Rather each setting once than the first ones twice: the fresh rounds decide at the end.
        rounds = self.store.note("rounds", lambda noted: int(noted["rounds"]))
        if rounds is None:
            rounds = _ROUNDS if self._in_time() >= _ROUNDS * self._trials(axes) else 1
            self.store.write_note("rounds", {"rounds": rounds})
        for again in range(_SWEEPS):
            self._sweep(axes, rounds, again=bool(again))
        larger, rest = self.best, [axis for axis in axes if axis != "batch_size"]
        needed = self._trials(rest) + 2 * _ROUNDS
        if larger.setting.batch_size is None or self.stopped or self._in_time() < needed:
            return
        self.best, runner_up = self.plain, self.second
        self._sweep(rest, 1, again=False)
        smaller, self.best, self.second, self.stopped = self.best, larger, runner_up, ""
        if smaller is not self.plain:
            self._race_these("each size of batch", [larger, smaller], _ROUNDS)

    def _trials(self, axes: Sequence[str]) -> int:
        return sum(len(self.space[axis]) for axis in axes)

    def _sweep(self, axes: Sequence[str], rounds: int, *, again: bool) -> None:
        """Race every setting by itself, or those that were near before."""
        for axis in axes:
            if not self.stopped:
                self._race(axis, rounds, again=again)

    def _race(self, axis: str, rounds: int, *, again: bool) -> None:
        """Race the values of one setting."""
        settings = variants_of(self.best.setting, axis, self._values(axis), self.seen)
        alive = [each for each in map(self._candidate, settings) if not each.out]
        if again:
            alive = [c for c in alive if c is self.best or not self._was_behind(c, axis)]
            if all(each.values for each in alive):
                return
        self._race_these(axis, alive, rounds)

    def _race_these(self, axis: str, alive: list[Candidate], rounds: int) -> None:
        """Race candidates, as many as there is time for, and keep the fastest."""
        first = self.round
        for number in range(rounds):
            raced = alive[: self._affordable(len(alive))]
            if len(raced) < 2:
                break
            self._one_round(raced, f"{axis}, round {number + 1}")
            tried = [*raced, *self._with_remat(axis, raced)]
            alive = self._near(tried, first, last=number + 1 == rounds)
        if self.round > first:
            self._rank(axis, [each for each in alive if not each.out], first)

    def _in_time(self) -> int:
        """Return for how many trials there is time before the confirmation."""
        return max(int((self.left_s - self._reserve_s()) / self._pace_s()), 0)

    def _affordable(self, trials: int) -> int:
        """Return for how many of these trials there is time."""
        found = self._in_time()
        if trials > 1 and found < trials:
            self.stopped = f"the budget of {self.budget_s:g} s was over"
        return min(found, trials)

    def _values(self, axis: str) -> Sequence[Any]:
        """Return the values to race: a call of many steps gains nothing where one takes long."""
        values = self.space[axis]
        if axis != "steps_per_execution" or not self.best.blocks:
            return values
        step_ms = self.best.blocks[-1].step_ms
        return [each for each in values if each is None or each * step_ms <= _LONG_CALL_MS]

    def _rank(self, axis: str, alive: list[Candidate], first: int) -> None:
        ranked = sorted(alive, key=lambda each: each.best(first))
        if not ranked:
            return
        if ranked[0].best(first) < _GAIN * self.best.best(first):
            self.second, self.best = self.best, ranked[0]
            self.watcher.found(f"best so far: {self.best.setting}")
        elif self.second is self.plain and len(ranked) > 1:
            self.second = next(each for each in ranked if each is not self.best)

    def _with_remat(self, axis: str, tried: Sequence[Candidate]) -> list[Candidate]:
        """Try candidates that ran out of memory with Remat; return them."""
        if axis != "batch_size":
            return []
        failed = [c.setting for c in tried if is_lack_of_memory(c.out) and c.setting.remat is None]
        again = [self._candidate(replace(setting, remat=True)) for setting in failed]
        if again:
            self._one_round(again, "with less memory")
        return again

    def _near(self, tried: Sequence[Candidate], first: int, *, last: bool) -> list[Candidate]:
        """Drop candidates that are clearly slower than the fastest; return the others."""
        alive = sorted((e for e in tried if not e.out), key=lambda each: each.best(first))
        for place, each in enumerate(alive):
            leader = alive[0]
            if place < 2 and not last:
                continue  # another program may have disturbed a first round
            found = each.compared(leader, first)
            ratio = each.best(first) / leader.best(first)
            if ratio > (_BEHIND if last else _FAR_BEHIND) or (found is not None and found.low > 1):
                each.beaten_by = (leader, ratio)
        return [each for each in alive if each.beaten_by is None or each is self.best]

    def _was_behind(self, candidate: Candidate, axis: str) -> bool:
        """Return whether this value of the axis fell behind in an earlier race of that axis."""
        value = getattr(candidate.setting, axis)
        return any(
            getattr(each.setting, axis) == value
            and getattr(each.beaten_by[0].setting, axis) != value
            for each in self.known.values()
            if each.beaten_by is not None
        )

    def _doing(self, what: str, candidate: Candidate) -> None:
        left_s = max(self.left_s, 0.0)
        self.watcher.doing(what, str(candidate.setting), (left_s, left_s))

    def _candidate(self, setting: Changes) -> Candidate:
        return self.known.setdefault(setting, Candidate(setting))

    # The trials.

    def _one_round(self, candidates: Sequence[Candidate], what: str) -> None:
        """Try each once, in random order."""
        order = list(candidates)
        random.Random(f"{self.job}/{self.round}").shuffle(order)
        for each in order:
            self._doing(what, each)
            began = time.monotonic()
            try:
                each.values[self.round] = self._try(each)
            except _Lost as lost:
                self._out(each, str(lost))
            self.took_s.append(time.monotonic() - began)
        self.round += 1

    def _try(self, candidate: Candidate) -> tuple[float, ...]:
        """Return what is to be small, once for each window."""
        if self.objective == "time-to-accuracy":
            return (self._to_accuracy(candidate),)
        block = self._block(candidate)
        if self.objective == "training":
            return predicted_training_s(self.seen, block)
        if self.objective == "step":
            return tuple(block.per_example_ms)
        memory = block.memory
        peak = memory.gpu_allocator_peak_mib if block.gpus else memory.host_peak_mib
        found = peak if self.objective == "memory" else block.energy_per_example_j
        if found is None:
            raise UserError(
                f"The {self.objective} cannot be measured here.",
                expected="figures of the driver or the system",
                received="none",
                fix='another objective, such as "training"',
            )
        return (found,)

    def _block(self, candidate: Candidate) -> Block:
        chain, task = candidate.setting.chain(self.seen), OneBlock(SPAN)
        # Of the round too: measured again, it is another block.
        key = f"block-{Variant('', self.job, chain).digest}-{self.round}"
        block = self.store.note(key, task.read)
        if block is None:
            block = self._valid_block(task, chain)
            self.store.write_note(key, asdict(block))
        if block.data != self.seen.data:
            raise _Lost(f"it got other data: {block.data}")
        candidate.blocks.append(replace(block, round=self.round))
        return block

    def _valid_block(self, task: OneBlock, chain: Chain) -> Block:
        """Return a block that counts; one that was spoiled is measured again."""
        spoiled = ""
        for _ in range(_TRIES):
            result = self._run(task, chain)
            if result.value is None:
                raise _Lost(result.reason or "no reason given")
            if result.value.invalid is None:
                return result.value
            spoiled = result.value.invalid
        raise _Lost(spoiled)

    def _to_accuracy(self, candidate: Candidate) -> float:
        """Return the seconds until the end of the first epoch as good as the job as it is."""
        figures = self._trained(candidate, seed=self.round)
        if candidate is self.plain and figures.test_accuracy is not None:
            self.target = min(self.target or 1.0, figures.test_accuracy)
        if self.target is None:
            raise UserError(
                "There is no accuracy to reach.",
                expected="test data and an accuracy metric",
                received=figures.unavailable.get("test_accuracy", "none"),
                fix='another objective, such as "training"',
            )
        seconds = figures.seconds_to(self.target)
        if seconds is None:
            raise _Lost(f"it does not reach an accuracy of {self.target:.2%}")
        return seconds

    def _trained(self, candidate: Candidate, seed: int) -> Figures:
        chain, task = candidate.setting.chain(self.seen), Training()
        key = f"training-{Variant('', self.job, chain).digest}-{seed}"
        figures = self.store.note(key, task.read)
        if figures is None:
            result = self._run(task, chain, seed)
            if result.value is None:
                raise _Lost(result.reason or "no reason given")
            figures = result.value
            self.store.write_note(key, asdict(figures))
        candidate.trainings[seed] = figures
        return figures

    def _run(self, task: Task[T], chain: Chain, seed: int | None = None) -> WorkerResult[T]:
        return run_worker(
            task,
            job=self.job,
            arguments=self.arguments,
            chain=chain,
            seed=seed,
            forked=True,
        )

    def _out(self, candidate: Candidate, reason: str) -> None:
        candidate.out = reason.splitlines()[0]
        self.watcher.found(f"{candidate.setting}: {candidate.out}")

    # The confirmation.

    def confirm(self) -> None:
        """Confirm the winner; where it loses quality, what is near to it, and its exact part."""
        if self.best is self.plain:
            return
        exact = Changes(**{name: getattr(self.best.setting, name) for name in EXACT})
        others = [self.second, self._candidate(exact)]
        for each in dict.fromkeys([self.best, *self._other_batches(), *others]):
            if each is self.plain or each.out:
                continue
            if self.left_s < 0:
                self.stopped = f"the budget of {self.budget_s:g} s was over"
                return
            # With one seed first: what loses much is not measured any further.
            if not self._is_as_good(each, min(self.seeds, 1)):
                continue
            if not (self._is_faster(each) if self.confirms else self._looks_faster(each)):
                return  # to ask one after the other finds one that is faster by luck
            if self._is_as_good(each, self.seeds):
                self.chosen = each
                return

    def _other_batches(self) -> list[Candidate]:
        """Return the winner with another learning rate, then the same with smaller batches."""
        best = self.best.setting
        sizes = [size for size in self.space["batch_size"] if size]
        sizes = sorted((s for s in sizes if s <= (best.batch_size or 0)), reverse=True)
        rates: tuple[Rate | None, ...] = (None,)
        if self.seen.rule is not None:
            rates = ("fast", "cosine", None) if self.seen.rate else ("cosine", None)
        return [
            self._candidate(replace(best, batch_size=size, learning_rate=rate))
            for size in sizes
            for rate in rates
        ]

    def _looks_faster(self, candidate: Candidate) -> bool:
        """Return whether it was the faster one so far; measure once what was in no race."""
        if not candidate.values:
            self._one_round([self.plain, candidate], "measuring it")
        return not candidate.out and candidate.best() < self.plain.best()

    def _is_faster(self, candidate: Candidate) -> bool:
        """Measure it beside the job as it is until the interval decides."""
        together = [self.plain, candidate]
        if candidate is self.best and self.second is not self.plain:
            together.append(self.second)
        first, number = self.round, 0
        found: list[Comparison] = []
        reserve_s = self._trainings_s()
        while FRESH.wants_more(number, found):
            if number >= FRESH.at_least and self.left_s < reserve_s:
                break
            together = [each for each in together if not each.out]
            if candidate not in together:
                return False
            self._one_round(together, f"confirming, round {number + 1}")
            number += 1
            compared = candidate.compared(self.plain, first)
            found = [] if compared is None else [compared]
            # To stop as soon as it looks faster would find a difference where there is none.
            if found and number >= FRESH.at_least and found[0].high < _SURELY:
                break
        if not found or found[0].verdict != "faster":
            said = found[0].verdict if found else "not measured twice"
            self._out(candidate, f"{said} in fresh rounds beside the job as it is")
            return False
        self.confirmed = found[0]
        return True

    def _is_as_good(self, candidate: Candidate, seeds: int) -> bool:
        """Return whether whole trainings lose no accuracy, seed by seed beside the plain job."""
        self.quality, self.whole = "", None
        if all(part.exact for part in candidate.setting.chain(self.seen).parts):
            return True
        if not seeds:
            self.quality = "not confirmed: no whole training was asked for"
            return True
        pair = (self.plain, candidate)
        for seed in range(seeds):
            for each in pair if seed % 2 == 0 else reversed(pair):
                if seed not in each.trainings:
                    what = f"training whole, seed {seed + 1} of {self.seeds}"
                    self._doing(what, each)
                try:
                    self._trained(each, seed)
                except _Lost as lost:
                    self._out(candidate, f"its quality is not known: {lost}")
                    return False
            reason = self._lost(candidate, seed + 1)
            if reason is not None:
                self._out(candidate, reason)
                return False
        return True

    def _lost(self, candidate: Candidate, seeds: int) -> str | None:
        """Return why whole trainings speak against a candidate, or None; keep what they say."""
        plain, own = (
            Trainings(tuple(each.trainings[seed] for seed in range(seeds)))
            for each in (self.plain, candidate)
        )
        found = quality(plain, own, self.tolerance_points)
        if isinstance(found, str):
            return f"its quality is not known: {found}"
        done = seeds == self.seeds
        if found.points < -self.tolerance_points * (1 if done else _LOST_AT_ONCE):
            return f"it loses {-found.points:.2f} points of accuracy (seeds: {seeds})"
        self.quality = found
        whole = compare_whole(plain, own)
        if self.objective == "training" and not isinstance(whole, str):
            self.whole = whole
            if done and whole.ratio >= 1:
                return f"whole trainings take {whole.ratio:.2f} of the time"
        return None

    # The result.

    def _steps_for_the_report(self) -> None:
        """Measure steps, which a report shows, where something else was raced for."""
        for _ in range(LEAST_ROUNDS if not self.plain.blocks else 0):
            for each in dict.fromkeys((self.plain, self.chosen)):
                self._block(each)
            self.round += 1

    def result(self) -> Tuned:
        """Return the chain that was confirmed, and the report of everything that was measured."""
        with suppress(_Lost, KeyboardInterrupt):
            self._steps_for_the_report()
        return self.tuned()


class _Lost(Exception):
    """A candidate that cannot be measured."""


def _cache_folder() -> Path:
    """Return where searches are kept: in the user's cache, or here for a user without a home."""
    asked = os.environ.get("XDG_CACHE_HOME", "")
    # By the XDG rules a relative path is as good as none.
    if os.path.isabs(asked):
        return Path(asked) / "tfopt/tuned"
    try:
        return Path.home() / ".cache/tfopt/tuned"
    except RuntimeError:
        return Path(".tfopt/tuned")


def predicted_training_s(seen: JobFacts, block: Block) -> tuple[float, ...]:
    """Return the predicted seconds of the whole training, from building the model on."""
    steps: float = seen.steps_per_epoch or 0
    if seen.epoch_examples is not None and block.examples_per_step:
        steps = seen.epoch_examples / block.examples_per_step
    between_ms = statistics.median(block.between_epochs_ms) if block.between_epochs_ms else 0.0
    fixed_s = block.build_s + block.first_step_s + (seen.epochs - 1) * between_ms / 1000
    return tuple(fixed_s + seen.epochs * steps * ms / 1000 for ms in block.windows_ms)


def _require(
    objective: object, budget_s: object, exact: object, seeds: object, tolerance_points: object
) -> None:
    if objective not in get_args(Objective):
        raise UserError(
            "tune knows no such objective.",
            expected=", ".join(get_args(Objective)),
            received=repr(objective),
        )
    if not within(budget_s, LEAST_S, math.inf):
        raise UserError(
            "The budget is too small for one round.",
            expected=f"at least {LEAST_S:g} s",
            received=repr(budget_s),
        )
    require_switch("exact", exact)
    require_count("seeds", seeds, minimum=0)
    if not within(tolerance_points, 0, 100):
        raise UserError(
            "tolerance_points is not a number of points.",
            expected="0 to 100, such as 0.5",
            received=repr(tolerance_points),
        )
