"""Find the largest batch that trains, by training it, and the fastest.

Each trial runs in its own process: one that is killed, crashes, hangs or runs out of memory is a
failed trial with its reason. Interrupted, the search returns the results so far.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from textwrap import shorten
from typing import Any

from tfopt.data.host_memory import MIB, available_memory
from tfopt.errors import UserError, require_count, within
from tfopt.job.job import Job
from tfopt.job.transform import Transform, as_chain
from tfopt.measure.children import Lost, carried_out
from tfopt.measure.engine import Engine, compared, copies
from tfopt.measure.job_facts import RULES, JobFacts
from tfopt.measure.targets import Target, plain_arguments, reference_of
from tfopt.report import format as fmt
from tfopt.report.display import Display, Verbose, require_verbose
from tfopt.report.statistics import Comparison
from tfopt.train.learning_rate import scaled_learning_rate
from tfopt.tune.at_batch import AtBatch, look_at_job

_MULTIPLE = 8  # tensor cores want such batches
_ENDLESS = 1 << 40
_USABLE = 0.9  # of the free memory, on a CPU
_TRIAL_ROUNDS = 3
_FINAL_ROUNDS = 10
_PROCESSES = 2  # of each finalist
_LONGEST_REASON = 400
INTERRUPTED = "The search was interrupted: not all was tried or measured again."
_LATE = "The search ended when its time was over: not all was tried or measured again."


def find_batch_size(
    job: str | Callable[..., Job],
    *,
    arguments: Mapping[str, Any] | None = None,
    under: Transform | None = None,
    at_most: int | None = None,
    budget_s: float = math.inf,
    verbose: Verbose = "auto",
) -> BatchSizes:
    """Find the largest batch with which a job trains, and how fast each one tried is.

    The job's own batch is tried first, or the next smaller multiple of 8 (and of the replicas),
    then twice as much while it trains, then the gap is halved. The largest and the fastest are
    measured again, in turns, where they fit into memory together. Ctrl-C ends it with the
    results so far.

    Example::

        found = tfopt.find_batch_size("my_package.train:job", at_most=512)
        print(found.largest, found.fastest)

    Args:
        job: A function that makes the job, ``def job() -> tfopt.Job``, or its name,
            "package.module:job": each process makes it anew, and calls its callbacks.
        arguments: Keyword arguments of that function.
        under: A transform or a chain to apply to the job.
        at_most: The largest size to try; never more than there are examples to train on.
        budget_s: Seconds after which no further trial begins.
        verbose: As in ``model.fit``: "auto" shows each trial and its result, 0 nothing.

    Raises:
        UserError: The job cannot be imported or built in another process, or no batch trains.
    """
    require_verbose(verbose)
    reference = reference_of(job, "find_batch_size")
    target = Target(reference, reference, as_chain(under), plain_arguments(arguments))
    if at_most is not None:
        require_count("at_most", at_most)
    if not (budget_s == math.inf or (within(budget_s, 0, math.inf) and budget_s)):
        raise UserError("budget_s must be a number above 0.", received=repr(budget_s))
    ends_s = time.monotonic() + budget_s
    try:
        facts: JobFacts = carried_out(target, look_at_job)
    except Lost as lost:
        raise UserError("The job cannot be built.", received=str(lost)) from lost
    sizes = _sizes(facts, at_most)
    free_mib = available_memory().available_bytes / MIB
    limit_mib = None if facts.gpus else round(_USABLE * free_mib)
    way = AtBatch(0, facts.tuned_batch_size, facts.rebatch, limit_mib)
    with Display(verbose=verbose) as display:
        search = _Search(target, facts, way, ends_s, display)
        try:
            search.find(sizes)
            search.race()
            if time.monotonic() > ends_s:
                search.stopped = _LATE
        except KeyboardInterrupt:
            if not search.passed:
                raise
            search.stopped = INTERRUPTED
    return search.found()


def _sizes(facts: JobFacts, at_most: int | None) -> range:
    """Return the sizes that may be tried."""
    most = min(limit for limit in (at_most, facts.examples, _ENDLESS) if limit is not None)
    unit = math.lcm(_MULTIPLE if most >= _MULTIPLE else 1, facts.replicas * facts.accumulate)
    if most < unit:
        raise UserError(
            "There is no batch size to try.",
            expected=f"multiples of {unit}, for {facts.replicas} replicas",
            received=f"at_most={at_most}, {facts.examples} examples",
            fix="a larger at_most, or fewer replicas",
        )
    return range(unit, most + 1, unit)


def next_size(
    sizes: Sequence[int], start: int, passed: Collection[int], failed: Collection[int]
) -> int | None:
    """Return the size to try next: doubling while it trains, then halving the gap.

    None where the largest is found, or where there is none. A size that failed below one that
    passed is passed over: something else was wrong there.
    """
    largest = max(passed, default=0)
    smallest = min((size for size in failed if size > largest), default=0)
    if largest and smallest:
        size = sizes[(sizes.index(largest) + sizes.index(smallest)) // 2]
    else:
        aim = smallest // 2 or 2 * largest or start
        size = sizes[max(bisect_right(sizes, aim) - 1, 0)]
    return None if size in (largest, smallest) else size


@dataclass
class _Search:
    target: Target
    facts: JobFacts
    way: AtBatch
    ends_s: float
    display: Display
    tried: dict[int, Tried] = field(default_factory=dict)
    comparison: Comparison | None = None
    stopped: str | None = None

    @property
    def passed(self) -> list[Tried]:
        return [trial for trial in self.tried.values() if trial.passed]

    def find(self, sizes: Sequence[int]) -> None:
        """Try sizes until the largest is known."""
        while time.monotonic() < self.ends_s:
            passed = {trial.batch for trial in self.passed}
            size = next_size(sizes, self.facts.batch_size, passed, self.tried.keys() - passed)
            if size is None:
                return
            with Engine(self.display) as engine:
                (candidate,) = engine.admit([self._variant(size)])
                engine.take_rounds([candidate], _TRIAL_ROUNDS)
            if candidate.out:
                reason = shorten(candidate.out, _LONGEST_REASON, placeholder=" [...]")
                self.tried[size] = Tried(size, reason)
                continue
            timed = candidate.timed()
            peak_mib = timed.gpu_peak_mib or timed.host_peak_mib
            found = self.tried[size] = Tried(size, None, peak_mib, timed.step_ms)
            self.display.say(f"batch {size:,}: trains, {found.examples_per_s:,.0f} examples/s")

    def race(self) -> None:
        """Measure the largest and the fastest again, where memory has room for both at once."""
        largest = max(self.passed, key=lambda trial: trial.batch, default=None)
        fastest = max(self.passed, key=lambda trial: trial.examples_per_s, default=None)
        if largest is None or fastest is None or largest is fastest:
            return
        sides = largest.batch, fastest.batch
        variants = [one for size in sides for one in copies(self._variant(size), _PROCESSES)]
        with Engine(self.display) as engine:
            admitted = engine.admit(variants, until=self.ends_s)
            if len(admitted) < len(variants):
                return
            engine.take_rounds(admitted, _FINAL_ROUNDS, until=self.ends_s, doing="measuring again")
        raced = admitted[:_PROCESSES], admitted[_PROCESSES:]
        self.comparison = compared(*raced)
        if self.comparison is not None:
            for size, own in zip(sides, raced, strict=True):
                step_ms = 1000 * size * sum(candidate.example_s() for candidate in own) / len(own)
                self.tried[size] = replace(self.tried[size], step_ms=step_ms, processes=len(own))

    def _variant(self, size: int) -> Target:
        return replace(self.target, name=f"batch {size:,}", way=replace(self.way, batch=size))

    def found(self) -> BatchSizes:
        """Return the result."""
        limit_mib = self.way.limit_mib
        tried = tuple(self.tried[size] for size in sorted(self.tried))
        if not self.passed:
            reasons = [f"{trial.batch:,}: {trial.reason}" for trial in tried]
            raise UserError(
                "No batch was found that trains.",
                expected=f"one at least, within {limit_mib:,.0f} MiB" if limit_mib else None,
                received="; ".join([*reasons, *filter(None, [self.stopped])]),
                fix="by the reason: mend the job, which tfopt.run(job) shows as well; or Remat, "
                "MixedPrecision or a smaller model; or a larger budget_s",
            )
        job, chain = self.target.job, repr(self.target.chain)
        return BatchSizes(job, chain, self.facts, limit_mib, tried, self.comparison, self.stopped)


# The result.


def rate_for(optimizer: str, rate: float | None, *, tuned: int, batch: int) -> str:
    """Return advice on the learning rate for a batch; ``rate`` is None under a schedule."""
    rule = RULES.get(optimizer)
    if rule is None:
        return f"no rule is known for {optimizer}: look for the rate anew"
    factor = scaled_learning_rate(1.0, tuned_batch=tuned, batch=batch, rule=rule)
    if rate is None:
        return f"the peak of its schedule times {factor:.3g} by the {rule} rule for {optimizer}"
    words = f"{rate * factor:.3g} by the {rule} rule for {optimizer}, chosen for {tuned}"
    return (
        f"{words}: LearningRate({rule!r}) in the chain, with tuned_batch_size={tuned}; "
        "no rule holds for every model"
    )


@dataclass(frozen=True)
class Tried:
    """One batch size.

    Attributes:
        reason: Why it failed; None where it trained.
        peak_mib: The peak memory: of TensorFlow on all GPUs, or resident in the process.
        step_ms: The median over the processes that took turns in the end; else of its trial.
        processes: How many took turns in the end.
    """

    batch: int
    reason: str | None = None
    peak_mib: float | None = None
    step_ms: float | None = None
    processes: int = 0

    @property
    def passed(self) -> bool:
        """Return whether it trained."""
        return self.reason is None

    @property
    def examples_per_s(self) -> float:
        """Return the throughput; 0 where it does not train."""
        return 1000 * self.batch / self.step_ms if self.step_ms else 0.0

    def cells(self) -> tuple[str, ...]:
        """Return its row of the table."""
        figures = {",.0f": self.peak_mib, ",.2f": self.step_ms, ",.1f": self.examples_per_s}
        texts = [format(value, form) if value else "" for form, value in figures.items()]
        outcome = "trains" if self.passed else "fails"
        return (f"{self.batch:,}", outcome, *texts, str(1 + self.processes))


@dataclass(frozen=True)
class BatchSizes:
    """The result of ``tfopt.find_batch_size``.

    Attributes:
        job: Its reference; ``chain``: what was applied to it.
        facts: The job as it is.
        limit_mib: What the process of a trial might take; None on a GPU.
        tried: Every size, the smallest first.
        comparison: The time of an example of the fastest against that of the largest.
        stopped: Why the search ended before it was through; None where it was.
    """

    job: str
    chain: str
    facts: JobFacts
    limit_mib: float | None
    tried: tuple[Tried, ...]
    comparison: Comparison | None = None
    stopped: str | None = None

    @property
    def interrupted(self) -> bool:
        """Return whether the user stopped it."""
        return self.stopped == INTERRUPTED

    @property
    def largest(self) -> int:
        """Return the largest batch that trained."""
        return max(trial.batch for trial in self.tried if trial.passed)

    @property
    def fastest(self) -> int:
        """Return the batch with most examples per second, of those measured again if any were."""
        again = [trial for trial in self.tried if trial.passed and trial.processes]
        return max(again or self.tried, key=lambda trial: trial.examples_per_s).batch

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what there is to say about it, a sentence each."""
        failed = [trial for trial in self.tried if not trial.passed]
        above = [trial.batch for trial in failed if trial.batch > self.largest]
        beyond = f"{min(above):,} does not" if above else "none larger was tried"
        lines = [f"The largest batch tried that trains is {self.largest:,}; {beyond}."]
        lines += [f"{t.batch:,} failed: {(t.reason or '').rstrip('.')}." for t in failed]
        lines.append(self._speed)
        if self.facts.rebatch:
            lines.append("The data yields batches: add Pipeline(batch_size=...) to train so.")
        facts, tuned = self.facts, self.facts.tuned_batch_size
        for batch in sorted({self.largest, self.fastest} - {tuned}):
            advice = rate_for(facts.optimizer, facts.rate, tuned=tuned, batch=batch)
            lines.append(f"Learning rate for {batch:,}: {advice}.")
        return (*lines, *filter(None, [self.stopped]))

    def __str__(self) -> str:
        limit = "" if self.limit_mib is None else f" within {self.limit_mib:,.0f} MiB"
        chain = "" if self.chain == "chain()" else f" under {self.chain}"
        device = "GPU" if self.facts.gpus else "CPU"
        title = f"{self.job}{chain}, on the {device}{limit}: batch sizes that train"
        head = ("batch", "", "peak MiB", "step ms", "examples/s", "processes")
        return "\n".join([title, *fmt.table(head, (t.cells() for t in self.tried)), *self.notes])

    def to_json(self) -> str:
        """Return all of it as JSON."""
        answers = {"largest": self.largest, "fastest": self.fastest, "notes": list(self.notes)}
        tried = [{**asdict(t), "examples_per_s": t.examples_per_s or None} for t in self.tried]
        content = {**answers, **asdict(self), "tried": tried}
        return json.dumps(content, indent=1, allow_nan=False)

    @property
    def _speed(self) -> str:
        if self.fastest == self.largest:
            return "It is the fastest as well."
        (fastest,) = (trial for trial in self.tried if trial.batch == self.fastest)
        words = f"The fastest is {fastest.batch:,}, with {fastest.examples_per_s:,.0f} examples/s"
        if self.comparison is None:
            return f"{words}, measured once: no difference from the largest is certain."
        if self.comparison.verdict != "faster":
            return f"{words}; no difference from the largest is certain."
        return f"{words}: {fmt.speed_in_words(self.comparison)} as the largest."
