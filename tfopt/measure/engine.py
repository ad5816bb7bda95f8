"""Give processes turns and time them: the one engine that all comparisons come from.

Each candidate is a process that trains its variant of a job, and stands still between its turns.
In a round every candidate has one turn of a tenth of a second, or of one execution where that is
longer, in random order; turns of one round are compared, so that a machine that slows down, and
its neighbours, hit all alike. A candidate that dies, hangs or runs out of memory leaves with its
reason.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import psutil

from tfopt.data.host_memory import MIB, available_memory
from tfopt.errors import UserError
from tfopt.job.cgroup import usable_cores
from tfopt.measure.children import JobProcess, Lost
from tfopt.measure.targets import Target
from tfopt.measure.turn_taking import Ready, TakeTurns, Turn
from tfopt.monitor.nvml import gpu_memories
from tfopt.report.display import Display
from tfopt.report.statistics import LEAST, Comparison, compare
from tfopt.report.strict import Status
from tfopt.report.timed_process import TimedProcess

TURN_S = 0.1
_USABLE = 0.8  # of the free memory
_GROWS = 1.3  # beyond what a process held when it was ready
_START_TIMEOUT_S = 600.0
LATE = "it was not ready in time"
_TURN_TIMEOUT_S = 60.0
_MOST, _MOST_TRAININGS = 1000, 8  # at once
_TIMES_ITS_LONGEST = 20  # after so much longer than any turn of it a candidate hangs


@dataclass(eq=False)
class Candidate:
    """A variant in its own process.

    Attributes:
        ready: Its report after compiling; None before.
        turns: By the number of the round.
        out: Why it takes no more turns; empty while it does.
        status: Then refused, no_effect or failed.
        held_mib: Its unshared memory when it was ready.
        began: When its process was started, in seconds of ``time.monotonic()``.
        alone_s: What its start would take alone; None where that is not known.
    """

    variant: Target
    child: JobProcess | None = None
    ready: Ready | None = None
    turns: dict[int, Turn] = field(default_factory=dict)
    out: str = ""
    status: Status = "measured"
    held_mib: float = 0.0
    began: float = 0.0
    alone_s: float | None = None

    @property
    def alive(self) -> bool:
        """Return whether it takes turns."""
        return self.child is not None and self.ready is not None and not self.out

    def timed(self, rounds: Iterable[int] | None = None) -> TimedProcess:
        """Return what was measured of it, over all its turns or those of some rounds."""
        ready, turns = self.ready, self.turns
        assert ready is not None
        figures = dict(turns[max(turns)].peaks)
        programs, lacking = ready.new_programs, dict[str, str]()
        if isinstance(programs, str):
            lacking["new_programs"] = programs
        if ready.batch_size is None:
            lacking["batch_size"] = "the data yields its own batches"
        figures["unavailable"] = {**figures["unavailable"], **lacking}
        numbers = tuple(turns if rounds is None else rounds)
        steps_s = [turns[number].seconds / turns[number].steps for number in numbers]
        epoch_s = (ready.epoch_steps or 0) * statistics.median(steps_s)
        return TimedProcess(
            build_s=round(ready.build_s, 4),
            first_step_s=round(ready.first_step_s, 4),
            first_steps=ready.first_steps,
            fill_s=round(max(ready.filled_s - epoch_s, 0.0), 4),
            rounds=numbers,
            turns_ms=tuple(round(1000 * step_s, 5) for step_s in steps_s),
            steps=tuple(turns[number].steps for number in numbers),
            batch_size=ready.batch_size,
            replicas=ready.replicas,
            new_programs=None if isinstance(programs, str) else programs,
            data=ready.data,
            shapes=ready.shapes,
            **figures,
        )

    def example_s(self, rounds: Iterable[int] | None = None) -> float:
        """Return the median time of an example, over all its turns or those of some rounds."""
        return self.timed(rounds).example_ms / 1000

    @property
    def start_s(self) -> float:
        """Return the seconds of building the model and of compiling its steps."""
        assert self.ready is not None
        # On one H200, XLA took 3.0 s for the smaller last batch after 3.5 s for the first step.
        return self.ready.build_s + max(len(self.ready.shapes), 1) * self.ready.first_step_s

    def training_s(self, examples: int, rounds: Iterable[int] | None = None) -> float:
        """Return the predicted seconds of a training of so many examples, its start included."""
        timed = self.timed(rounds)
        steps_s = timed.training_s(examples / (timed.batch_size or 1)) - timed.first_step_s
        return (self.alone_s or self.start_s) + steps_s


def shared_rounds(candidates: Iterable[Candidate]) -> list[int]:
    """Return the rounds in which all of these had a turn."""
    return sorted(set.intersection(*(set(candidate.turns) for candidate in candidates)))


def beside(
    reference: Sequence[Candidate], variant: Sequence[Candidate]
) -> tuple[list[Candidate], list[Candidate], list[int]]:
    """Return the candidates of both sides that met, and the rounds that all of them were in.

    A process that started after the other side had ended is left out. All are empty where the
    sides never met.
    """
    sides = reference, variant
    rounds_of = [set[int]().union(*(candidate.turns for candidate in side)) for side in sides]
    met = rounds_of[0] & rounds_of[1]
    first, second = ([c for c in side if met & c.turns.keys()] for side in sides)
    rounds = shared_rounds([*first, *second]) if met else []
    return (first, second, rounds) if rounds else ([], [], [])


def compared(
    reference: Sequence[Candidate],
    variant: Sequence[Candidate],
    value: Callable[[Candidate, Iterable[int]], float] = Candidate.example_s,
) -> Comparison | None:
    """Return the variant's time per example over the reference's, in the rounds of both.

    None where there are not two processes a side. ``value`` may be another time of a process.
    """
    *sides, rounds = beside(reference, variant)
    if min(map(len, sides)) < LEAST:
        return None
    return compare(*([value(candidate, rounds) for candidate in side] for side in sides))


class Engine:
    """The processes of one measurement; all end with it.

    Example:
        with Engine() as engine:
            plain, fast = engine.admit([Target(...), Target(...)])
            engine.take_rounds([plain, fast], 20)
            print(plain.example_s() / fast.example_s())
    """

    def __init__(
        self, display: Display | None = None, *, turn_s: float = TURN_S, seed: int = 0
    ) -> None:
        self.display = display or Display(verbose=False)
        self.turn_s = turn_s
        self.round = 0
        self.cost_s = 0.0
        """The seconds of turns that no candidate computed in."""
        self._random = random.Random(seed)
        self._candidates: list[Candidate] = []
        self._others_mib = _used_mib()
        self._gpu_mib = 0.0
        """What the first process took of a GPU's memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss(self._candidates)

    # Starting.

    def admit(
        self,
        variants: Sequence[Target],
        *,
        skip_if_idle: bool = False,
        look: bool = False,
        until: float = math.inf,
        ready_by: float = math.inf,
    ) -> list[Candidate]:
        """Start a process for each variant; return those that started, alive or not.

        As many start at once as there are cores, and none that memory has no room for: those are
        not among the result, and may be admitted when others are dismissed. No process starts
        after ``until``, in seconds of ``time.monotonic()``; one that is not ready by ``ready_by``
        leaves.
        """
        task = TakeTurns(skip_if_idle=skip_if_idle, look=look)
        waiting = [Candidate(variant) for variant in variants]
        starting: list[Candidate] = []
        admitted: list[Candidate] = []
        while waiting or starting:
            # The first one tells how much memory one takes.
            needed_mib = self._needed_mib(self._alive)
            at_once = usable_cores() if needed_mib else 1
            while waiting and len(starting) < at_once and time.monotonic() < until:
                if self._candidates and self._room(needed_mib) < len(starting) + 1:
                    break
                candidate = waiting.pop(0)
                if not starting:  # the first of all waits until TensorFlow has loaded
                    self.display.doing(f"starting {candidate.variant.name}")
                self._candidates.append(candidate)
                way = candidate.variant.way or task.way
                candidate.began = time.monotonic()
                candidate.child = JobProcess(candidate.variant, replace(task, way=way))
                starting.append(candidate)
            if not starting:
                break
            first = starting.pop(0)
            self.display.doing(f"starting {first.variant.name}")
            self._make_ready(first, ready_by)
            admitted.append(first)
        return admitted

    def no_room(self) -> UserError:
        """Return the error for a machine that has no memory for one more process."""
        free = available_memory()
        return UserError(
            "There is no memory for one more process beside the job as it is.",
            expected=f"about {self._needed_mib(self._alive):,.0f} MiB",
            received=f"{free.available_bytes * _USABLE / MIB:,.0f} MiB: {free.limited_by}",
            fix="measure a smaller batch or model, or end other programs",
        )

    def _make_ready(self, candidate: Candidate, ready_by: float) -> None:
        """Wait until a candidate has compiled, and stop it."""
        child = candidate.child
        assert child is not None
        left_s = max(ready_by - time.monotonic(), 0.0)

        def meanwhile() -> None:
            what = f"building and compiling {candidate.variant.name}"
            self.display.waiting(what, time.monotonic() - candidate.began)

        try:
            said: Ready = child.receive(min(left_s, _START_TIMEOUT_S), meanwhile)
        except Lost as lost:
            is_late = time.monotonic() >= ready_by
            self._leaves(candidate, LATE if is_late else str(lost), lost.status)
            return
        candidate.ready = said
        if said.is_idle:
            note = said.notes.get(repr(candidate.variant.chain.parts[-1]), "")
            self._leaves(candidate, note or "it changes nothing here", "no_effect")
            return
        child.stop()
        candidate.held_mib = _own_mib(child.pid)
        self._gpu_mib = self._gpu_mib or _used_mib() - self._others_mib

    def _needed_mib(self, candidates: Iterable[Candidate]) -> float:
        """Return what one more process may take, if it grows as large as one of these."""
        return _GROWS * max((candidate.held_mib for candidate in candidates), default=0.0)

    def _room(self, needed_mib: float) -> float:
        """Return how many more processes of that size fit beside those that are there."""
        free_mib = available_memory().available_bytes * _USABLE / MIB
        fit = free_mib / needed_mib if needed_mib else math.inf
        if self._gpu_mib > 0:
            free = [gpu.free_mib for gpu in gpu_memories()]
            fit = min([fit, *(mib / (_GROWS * self._gpu_mib) for mib in free)])
        return min(fit, _MOST)

    @property
    def capacity(self) -> int:
        """Return how many processes fit into memory at once, those that are there included."""
        return len(self._alive) + int(self._room(self._needed_mib(self._candidates)))

    @property
    def trainings_at_once(self) -> int:
        """Return how many whole trainings run beside each other, as many as memory holds.

        One more than cores: at the ends of epochs they wait for threads of ``tf.data``.
        """
        fit = self._room(self._needed_mib(self._candidates))
        return int(max(min(usable_cores() + 1, _MOST_TRAININGS, fit), 1))

    @property
    def _alive(self) -> list[Candidate]:
        return [candidate for candidate in self._candidates if candidate.alive]

    # Turns.

    def take_rounds(
        self,
        candidates: Sequence[Candidate],
        rounds: int,
        *,
        until: float = math.inf,
        doing: str = "taking turns",
    ) -> int:
        """Give every candidate that is alive a turn in each of so many rounds.

        The first turn of a process is not kept: caches are cold. Ends before a round that would
        begin after ``until``. Returns how many rounds were whole.
        """
        if time.monotonic() >= until:
            return 0
        for candidate in candidates:
            if candidate.alive and not candidate.turns:
                self._turn(candidate)
        for number in range(rounds):
            alive = [candidate for candidate in candidates if candidate.alive]
            if not alive or time.monotonic() >= until:
                return number
            self.display.doing(doing)
            self._random.shuffle(alive)
            for candidate in alive:
                turn = self._turn(candidate)
                if turn is not None:
                    candidate.turns[self.round] = turn
            self.round += 1
        return rounds

    def left_s(self, candidates: Iterable[Candidate], rounds: int) -> float:
        """Return the seconds that so many rounds will take, by the turns so far."""
        return rounds * sum(
            statistics.fmean(turn.lasted_s for turn in candidate.turns.values())
            if candidate.turns
            else self.turn_s
            for candidate in candidates
        )

    def _turn(self, candidate: Candidate) -> Turn | None:
        child = candidate.child
        assert child is not None
        longest = max((turn.lasted_s for turn in candidate.turns.values()), default=0.0)
        begun = time.monotonic()
        child.go_on()
        child.send(self.turn_s)
        try:
            first = candidate.ready.first_step_s if candidate.ready else 0.0
            patience = _TURN_TIMEOUT_S + _TIMES_ITS_LONGEST * max(longest, first)
            turn: Turn = child.receive(patience)
        except Lost as lost:
            self._leaves(candidate, str(lost), lost.status)
            return None
        child.stop()
        self.cost_s += time.monotonic() - begun - turn.lasted_s
        return turn

    def _leaves(self, candidate: Candidate, reason: str, status: Status) -> None:
        """End a candidate with its reason, and forget its turns."""
        candidate.out, candidate.status = reason, status
        candidate.turns.clear()
        assert candidate.child is not None
        candidate.child.end()
        if status != "no_effect":
            self.display.say(f"{candidate.variant.name}: {reason.splitlines()[0]}")

    def dismiss(self, candidates: Iterable[Candidate]) -> None:
        """End candidates; what was measured of them stays."""
        for candidate in candidates:
            if candidate.child is not None:
                candidate.child.end()
                candidate.child = None


def _used_mib() -> float:
    return max((gpu.total_mib - gpu.free_mib for gpu in gpu_memories()), default=0.0)


def copies(variant: Target, count: int) -> list[Target]:
    """Return the same variant so many times, numbered."""
    return [replace(variant, name=f"{variant.name} ({n + 1})") for n in range(count)]


def _own_mib(pid: int) -> float:
    """Return the memory that only this process holds: pages of a fork are shared."""
    try:
        return float(psutil.Process(pid).memory_full_info().uss) / MIB
    except psutil.Error:
        return 0.0
