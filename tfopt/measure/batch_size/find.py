"""Find the largest batch that trains, by training it.

Each trial is a process of its own, so that one that is killed, crashes, hangs or runs out of memory
is a failed trial with its reason. Interrupted, the search returns what was found by then.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tfopt.data.host_memory import MIB, available_memory
from tfopt.errors import UserError, require_count, require_switch, within
from tfopt.job.job import Chain, Job, Transform
from tfopt.measure.batch_size.found import (
    INTERRUPTED,
    BatchSizes,
    Tried,
    in_one_line,
    rate_for,
)
from tfopt.measure.batch_size.trial import (
    Attempt,
    Kind,
    Limits,
    Trial,
    above_limit,
)
from tfopt.measure.job_facts import JobFacts, LookAtJob
from tfopt.measure.process import WorkerResult, run_worker
from tfopt.measure.rebatched import reference_of
from tfopt.measure.targets import parts_of, plain_arguments
from tfopt.train.memory_message import is_lack_of_memory

# Which batch to try next: doubling while it trains, then halving the gap.


@dataclass(frozen=True)
class Grid:
    """The sizes that may be tried.

    Attributes:
        unit: The smallest; all others are its multiples.
        doubling: Only its multiples by powers of two.
        most: None of more than this.
    """

    unit: int
    doubling: bool = False
    most: int | None = None

    def floor(self, size: int) -> int:
        """Return the largest size of at most this; 0 where there is none."""
        if self.most is not None:
            size = min(size, self.most)
        multiple = size // self.unit
        if self.doubling and multiple:
            multiple = 1 << (multiple.bit_length() - 1)
        return multiple * self.unit


def next_size(
    grid: Grid, start: int, passed: Collection[int], failed: Collection[int]
) -> int | None:
    """Return the size to try next; None where the largest is found, or where there is none.

    A size that failed below one that passed is passed over: something else was wrong there.
    """
    largest = max(passed, default=0)
    above = [size for size in failed if size > largest]
    if not above:
        if not largest:
            return max(grid.floor(start), grid.floor(grid.unit)) or None
        following = grid.floor(2 * largest)
        return following if following > largest else None
    smallest = min(above)
    if not largest:
        lower = max(grid.floor(smallest // 2), grid.floor(grid.unit))
        return lower if lower < smallest else None
    middle = grid.floor((largest + smallest) // 2)
    if middle <= largest:
        middle = grid.floor(smallest - 1)
    return middle if middle > largest else None


_MULTIPLE = 8
_USABLE = 0.9  # of a host's free memory, where no limit is given
_CONTENDERS = 4


def find_batch_size(
    job: str | Callable[..., Job],
    *,
    arguments: Mapping[str, Any] | None = None,
    under: Transform | None = None,
    multiple_of: int | None = None,
    power_of_two: bool = False,
    at_most: int | None = None,
    limit_mib: float | None = None,
    repeats: int = 2,
    most_trials: int = 30,
    trial_s: float = 600.0,
    within_s: float = math.inf,
    tell: Callable[[Attempt], None] = lambda attempt: None,
) -> BatchSizes:
    """Find the largest batch with which a job trains, and how fast each one tried is.

    The job's own batch is tried first, or the next smaller one of those that may be, then twice as
    much while it trains, then the gap is halved.
    A trial trains some steps by ``fit``, with the optimizer's state and some of the validation. The
    fastest sizes are measured again, in turns, so that their spread is known. Ctrl-C ends it with
    what was found by then. On a GPU, memory and its limit are those of TensorFlow's allocator; that
    has not been run on one yet.

    Example::

        found = tfopt.find_batch_size("my_package.train:job", at_most=512)
        print(found.largest, found.fastest)

    Args:
        job: A function that makes the job, ``def job() -> tfopt.Job``, or its name,
            "package.module:job": each process makes it anew. Its callbacks are called in each
            trial, also those that write files.
        arguments: Of that function.
        under: A transform or a chain to apply to the job.
        multiple_of: Only such batches; 8 by default, which tensor cores want. A multiple of the
            replicas as well, under Distribute.
        power_of_two: Only powers of two, times the replicas.
        at_most: None larger; never more than there are examples to train on.
        limit_mib: As if there was so much memory: for each GPU TensorFlow's own limit; without a
            GPU what the process holds (resident, TensorFlow itself included), looked at 50 times a
            second, and its peak. Without a limit, on a CPU, nine tenths of what is free.
        repeats: How many times more the fastest sizes are measured.
        most_trials: To find the largest; the repeats come on top.
        trial_s: A trial that takes longer has failed.
        within_s: After so long, no further trial begins.
        tell: Called with each trial's outcome.
    """
    reference = reference_of(job)
    _require_settings(multiple_of, power_of_two, at_most, limit_mib)
    require_count("repeats", repeats, minimum=0)
    require_count("most_trials", most_trials)
    for name, value in (("trial_s", trial_s), ("within_s", within_s)):
        if value != math.inf and (not within(value, 0, math.inf) or not value):
            raise UserError(f"{name} is not a time.", expected="seconds", received=repr(value))
    search = _Search(
        reference=reference,
        arguments=plain_arguments(arguments),
        chain=Chain(parts_of(under)),
        limit_mib=limit_mib,
        trial_s=trial_s,
        ends_s=time.monotonic() + within_s,
        tell=tell,
    )
    search.look()
    grid = _grid(search.seen, multiple_of, power_of_two, at_most)
    try:
        search.find(grid, most_trials)
        search.repeat(repeats)
    except KeyboardInterrupt:
        if not search.passed:
            raise
        search.stopped = INTERRUPTED
    return search.result()


@dataclass
class _Search:
    reference: str
    arguments: dict[str, Any]
    chain: Chain
    limit_mib: float | None
    trial_s: float
    ends_s: float
    tell: Callable[[Attempt], None]
    seen: JobFacts = field(init=False)
    attempts: list[Attempt] = field(default_factory=list)
    stopped: str | None = None

    @property
    def failed(self) -> set[int]:
        """Return the sizes that failed once or more: what trains only sometimes does not train."""
        return {each.batch for each in self.attempts if not each.passed}

    @property
    def passed(self) -> set[int]:
        """Return the sizes that trained each time."""
        return {each.batch for each in self.attempts} - self.failed

    def look(self) -> None:
        """Look at the job as it is; raise for its own mistakes."""
        result = self._run(LookAtJob(other_batches=True), Limits(None, self.trial_s))
        if result.value is None:
            raise UserError("The job cannot be built.", received=_indented(result.reason))
        self.seen = result.value
        if self.limit_mib is None and not self.seen.gpus:
            self.limit_mib = round(available_memory().available_bytes * _USABLE / MIB)

    def find(self, grid: Grid, most_trials: int) -> None:
        """Try sizes until the largest is known."""
        while True:
            size = next_size(grid, self.seen.batch_size, self.passed, self.failed)
            if size is None or self._over(len(self.attempts) >= most_trials, most_trials):
                break
            attempt = self._try(size)
            if attempt.kind == "error" and not self.passed:
                raise UserError(
                    f"The job does not train with a batch of {size:,}, and not for want of memory.",
                    received=in_one_line(attempt.reason),
                    fix="mend the job: tfopt.run(job) shows the same error",
                )
        if not self.passed:
            raise _nothing_trains(self.attempts, self.limit_mib, self.stopped)

    def repeat(self, repeats: int) -> None:
        """Measure the largest and the fastest again, in turns of random order."""
        tried = [self._tried(size) for size in sorted(self.passed)]
        fast = sorted(tried, key=lambda each: -(each.examples_per_s or 0.0))[:_CONTENDERS]
        sizes = sorted({tried[-1].batch, *(each.batch for each in fast)})
        order = random.Random(0)
        for _ in range(repeats):
            for size in order.sample(sizes, len(sizes)):
                if size not in self.passed:
                    continue
                if self._over(False, 0):
                    return
                self._try(size)

    def result(self) -> BatchSizes:
        seen = self.seen
        if not self.passed:
            raise _nothing_trains(self.attempts, self.limit_mib, self.stopped)
        sizes = sorted({each.batch for each in self.attempts})
        found = BatchSizes(
            job=self.reference,
            chain=repr(self.chain),
            own_batch=seen.batch_size,
            replicas=seen.replicas,
            accumulate=seen.accumulate,
            rebatched=seen.rebatch,
            device="GPU" if seen.gpus else "CPU",
            limit_mib=self.limit_mib,
            tried=tuple(map(self._tried, sizes)),
            stopped=self.stopped,
            rates=(),
        )
        rates = tuple(
            rate_for(seen.optimizer, seen.rate, tuned=seen.tuned_batch_size, batch=size)
            for size in sorted({found.largest, found.fastest})
        )
        return replace(found, rates=rates)

    def _tried(self, size: int) -> Tried:
        return Tried.of([each for each in self.attempts if each.batch == size])

    def _over(self, enough: bool, most_trials: int) -> bool:
        if enough:
            self.stopped = f"The search ended after {most_trials} trials; between the largest that "
            self.stopped += "trains and the smallest that does not, sizes were not tried."
        elif time.monotonic() > self.ends_s:
            self.stopped = "The search ended when its time was over: not all was tried or repeated."
        return self.stopped is not None

    def _try(self, size: int) -> Attempt:
        seen = self.seen
        limit = None if self.limit_mib is None else int(self.limit_mib)
        task = Trial(size, seen.tuned_batch_size, seen.rebatch, limit if seen.gpus else None)
        watch = Limits(None if seen.gpus else self.limit_mib, self.trial_s)
        attempt = _attempt(size, self._run(task, watch), watch, bool(seen.gpus), self.limit_mib)
        self.attempts.append(attempt)
        self.tell(attempt)
        return attempt

    def _run(self, task: Any, watch: Limits) -> WorkerResult[Any]:
        return run_worker(
            task, job=self.reference, arguments=self.arguments, chain=self.chain, watch=watch
        )


def _attempt(
    size: int, result: WorkerResult[Attempt], watch: Limits, gpu: bool, limit_mib: float | None
) -> Attempt:
    found = result.value
    if found is None:
        return Attempt(size, _kind_of(result, watch), result.reason)
    held = None if gpu else found.peak_mib
    if held is not None and limit_mib is not None and held > limit_mib:
        return Attempt(size, "memory", above_limit(held, limit_mib))
    return found


def _kind_of(result: WorkerResult[Any], watch: Limits) -> Kind:
    if watch.ended is not None:
        return watch.ended
    reason = result.reason or ""
    if "without a result" not in reason:
        return "memory" if is_lack_of_memory(reason) else "error"
    return "memory" if "SIGKILL" in reason or is_lack_of_memory(reason) else "crash"


def _grid(seen: JobFacts, multiple_of: int | None, power_of_two: bool, at_most: int | None) -> Grid:
    unit = 1 if power_of_two else multiple_of or _MULTIPLE
    most = min((each for each in (at_most, seen.examples) if each is not None), default=None)
    if multiple_of is None and most is not None and most < unit:
        unit = 1  # nobody asked for eights, and there are fewer examples
    unit = seen.replicas if power_of_two else math.lcm(unit, seen.replicas)
    grid = Grid(unit, power_of_two, most)
    if not grid.floor(unit):
        raise UserError(
            "There is no batch size to try.",
            expected=f"at least {unit} examples: multiples of {unit}"
            + (f", for {seen.replicas} replicas" if seen.replicas > 1 else ""),
            received=f"at_most={at_most}, {seen.examples} examples",
            fix="a smaller multiple_of, or a larger at_most",
        )
    return grid


def _nothing_trains(
    tried: list[Attempt], limit_mib: float | None, stopped: str | None
) -> UserError:
    if not tried:
        return UserError(
            f"No batch size was tried. {stopped}",
            expected="time for one trial at least",
            fix="a larger within_s",
        )
    last = min(tried, key=lambda each: each.batch)
    room = "" if limit_mib is None else f" within {limit_mib:,.0f} MiB"
    return UserError(
        f"Not even a batch of {last.batch:,} trains{room}.{f' {stopped}' if stopped else ''}",
        expected="one size at least that trains",
        received=in_one_line(last.reason),
        fix="Remat, MixedPrecision or a smaller model; where the process itself is above the "
        "limit, a larger limit",
    )


def _indented(reason: str | None) -> str:
    return "\n    ".join((reason or "no reason given").splitlines())


def _require_settings(
    multiple_of: object, power_of_two: object, at_most: object, limit_mib: object
) -> None:
    require_switch("power_of_two", power_of_two)
    for name, value in (("multiple_of", multiple_of), ("at_most", at_most)):
        if value is not None:
            require_count(name, value)
    if power_of_two and multiple_of is not None:
        raise UserError(
            "Sizes are either powers of two or multiples.",
            received=f"power_of_two=True, multiple_of={multiple_of}",
            fix="give one of them",
        )
    if limit_mib is not None and not within(limit_mib, 1, math.inf):
        raise UserError(
            "limit_mib is not a size.", expected="MiB, at least 1", received=repr(limit_mib)
        )
