"""The result of a search: every size that was tried, the largest and the fastest that train.

What was not measured is None; a difference in speed that the spread covers is not called one.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from tfopt.measure.batch_size.trial import Attempt, Kind
from tfopt.measure.job_facts import RULES
from tfopt.report.format import table
from tfopt.train.learning_rate import Rule, scaled_learning_rate

# Why sizes failed, for people; the attempts keep the whole text.

_MOST = 400
_HOW = {
    "error": " by an error, not for want of memory",
    "crash": " by a crash that says nothing of memory",
}
# The way to an operation, as TensorFlow tells it, and the operation's name in the graph.
_FRAME = re.compile(r'\s*File "|\s{4}')
_HEADING = re.compile(
    r"Graph execution error:|Detected at node .*|.*defined at \(most recent call last\):"
    r"|Stack trace for op definition:|\[\[\{\{node [^]]*\]\]|\[Op:[^]]*\]"
)


def failures(tried: Iterable[Tried]) -> list[str]:
    """Return a sentence for each way to fail, with the sizes that failed so."""
    alike: dict[str, list[Tried]] = {}
    for each in tried:
        if not each.passed:
            alike.setdefault(each.kind, []).append(each)
    return [_sentence(kind, failed) for kind, failed in alike.items()]


def _sentence(kind: str, failed: Sequence[Tried]) -> str:
    sizes = ", ".join(f"{each.batch:,}" for each in failed)
    whose = f"; of {failed[0].batch:,}" if len(failed) > 1 else ""
    reason = in_one_line(failed[0].reason).rstrip(".")
    return f"{sizes} failed{_HOW.get(kind, '')}{whose}: {reason}."


def in_one_line(reason: str | None) -> str:
    """Return the message without TensorFlow's frames, cut where it is long."""
    lines = (reason or "no reason was given").splitlines()
    kept = [_HEADING.sub("", line) for line in lines if not _FRAME.match(line)]
    words = " ".join(" ".join(kept).split())
    return words if len(words) <= _MOST else words[: _MOST - 3] + "..."


# The learning rate that another batch may need: by which rule, and how far to trust it.

_LARGE_STEP = 8
_SOURCES = {
    "linear": "Goyal et al. 2017, arXiv:1706.02677",
    "sqrt": "Malladi et al. 2022, arXiv:2205.10287",
}
CAVEAT = (
    "No rule holds for every model: compare the trained models, not only the speed "
    "(Shallue et al. 2019, arXiv:1811.03600)."
)


@dataclass(frozen=True)
class RateAdvice:
    """The learning rate for one batch size.

    Attributes:
        factor: What the rate is to be multiplied with; None where no rule is known.
        rate: The result; None under a schedule, whose peak the factor is for.
    """

    batch: int
    rule: Rule | None
    factor: float | None
    rate: float | None
    words: str


def rate_for(optimizer: str, rate: float | None, *, tuned: int, batch: int) -> RateAdvice:
    """Return the rate that a batch of this size needs, where ``rate`` was chosen for ``tuned``."""
    rule = RULES.get(optimizer)
    if batch == tuned:
        words = "the rate was chosen for this batch"
        return RateAdvice(batch, rule, 1.0 if rule else None, rate, words)
    if rule is None:
        words = f"no rule is known for {optimizer}: look for the rate anew"
        return RateAdvice(batch, None, None, None, words)
    factor = scaled_learning_rate(1.0, tuned_batch=tuned, batch=batch, rule=rule)
    scaled = None if rate is None else rate * factor
    what = f"the peak of its schedule times {factor:.3g}" if scaled is None else f"{scaled:.3g}"
    words = f"{what} by the {rule} rule for {optimizer} ({_SOURCES[rule]}), chosen for {tuned}"
    if scaled is not None:
        words += f": LearningRate({rule!r}) in the chain, with tuned_batch_size={tuned}"
    if batch >= _LARGE_STEP * tuned and math.isfinite(factor):
        words += "; with warm-up over the first epochs, as LearningRate(..., warmup=0.05)"
    return RateAdvice(batch, rule, factor, scaled, words)


INTERRUPTED = "The search was interrupted: not all was tried or repeated."
_HEAD = ("batch", "", "peak MiB", "step ms", "examples/s", "from", "to", "processes")


@dataclass(frozen=True)
class Tried:
    """One batch size.

    Attributes:
        kind: "trained", or how it failed: for want of "memory" or "time", by a "crash" of its
            process, or by an "error" of the job.
        reason: Why it failed; None where it trained each time.
        peak_mib: The most that was held: of one GPU's memory, or resident in the process.
        step_ms: The median over the processes.
        examples_per_s: So this; ``least_per_s`` and ``most_per_s`` are of single processes.
        processes: How many tried it.
    """

    batch: int
    kind: Kind
    reason: str | None
    peak_mib: float | None
    step_ms: float | None
    examples_per_s: float | None
    least_per_s: float | None
    most_per_s: float | None
    processes: int

    @classmethod
    def of(cls, attempts: Sequence[Attempt]) -> Tried:
        """Gather all attempts with one size."""
        done = [each for each in attempts if each.passed]
        failed = next((each for each in attempts if not each.passed), None)
        speeds = [each.examples_per_s for each in done if each.examples_per_s is not None]
        return cls(
            batch=attempts[0].batch,
            kind=failed.kind if failed else "trained",
            reason=failed.reason if failed else None,
            peak_mib=max((each.peak_mib for each in done if each.peak_mib), default=None),
            step_ms=_median(each.step_ms for each in done),
            examples_per_s=_median(speeds),
            least_per_s=min(speeds) if len(speeds) > 1 else None,
            most_per_s=max(speeds) if len(speeds) > 1 else None,
            processes=len(attempts),
        )

    @property
    def passed(self) -> bool:
        """Return whether it trained each time."""
        return self.kind == "trained"


@dataclass(frozen=True)
class BatchSizes:
    """The result of ``tfopt.find_batch_size``.

    Attributes:
        job: Its reference.
        chain: What was applied to it.
        own_batch: The job's batch as it is.
        replicas: How many share a batch.
        accumulate: Micro-batches of a batch; 1 without Accumulate.
        rebatched: Whether the data yields batches, of which others were made for the trials.
        device: What trained: "GPU" or "CPU".
        limit_mib: What a trial might take, of each GPU or of the process; None: what there is.
        tried: Every size, the smallest first.
        stopped: Why the search ended before it was through; None where it was.
        rates: Advice on the learning rate for the largest and the fastest.
    """

    job: str
    chain: str
    own_batch: int
    replicas: int
    accumulate: int
    rebatched: bool
    device: str
    limit_mib: float | None
    tried: tuple[Tried, ...]
    stopped: str | None
    rates: tuple[RateAdvice, ...]

    @property
    def interrupted(self) -> bool:
        """Return whether the user stopped it."""
        return self.stopped == INTERRUPTED

    @property
    def largest(self) -> int:
        """Return the largest batch that trained each time it was tried."""
        return self._largest.batch

    @property
    def fastest(self) -> int:
        """Return the batch with most examples a second."""
        return self._fastest.batch

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what there is to say about it, a sentence each."""
        sentences = (
            self._reach,
            *failures(self.tried),
            self._speed,
            self._made,
            self.stopped,
        )
        return tuple(filter(None, sentences))

    def __str__(self) -> str:
        lines = [self._title, *table(_HEAD, map(_row, self.tried)), *self.notes]
        return "\n".join([*lines, *self._advice])

    def to_json(self) -> str:
        """Return all of it as JSON."""
        answers = {"largest": self.largest, "fastest": self.fastest, "notes": list(self.notes)}
        return json.dumps({**answers, **asdict(self)}, indent=1, allow_nan=False)

    @property
    def passed(self) -> tuple[Tried, ...]:
        """Return the sizes that train."""
        return tuple(each for each in self.tried if each.passed)

    @property
    def _largest(self) -> Tried:
        return max(self.passed, key=lambda each: each.batch)

    @property
    def _fastest(self) -> Tried:
        return max(self.passed, key=lambda each: each.examples_per_s or 0.0)

    @property
    def _title(self) -> str:
        limit = "" if self.limit_mib is None else f" within {self.limit_mib:,.0f} MiB"
        chain = "" if self.chain == "chain()" else f" under {self.chain}"
        return f"{self.job}{chain}, on the {self.device}{limit}: batch sizes that train"

    @property
    def _reach(self) -> str:
        above = [each.batch for each in self.tried if not each.passed and each.batch > self.largest]
        if not above:
            return (
                f"The largest batch tried that trains is {self.largest:,}; none larger was tried."
            )
        return f"The largest batch tried that trains is {self.largest:,}; {min(above):,} does not."

    @property
    def _speed(self) -> str:
        fast, large = self._fastest, self._largest
        if fast is large:
            return "It is the fastest as well."
        if fast.examples_per_s is None or large.examples_per_s is None:
            return ""
        gain = fast.examples_per_s / large.examples_per_s - 1
        begins = f"The fastest is {fast.batch:,}, with {gain:.0%} more examples a second"
        if fast.least_per_s is None or large.most_per_s is None:
            return f"{begins}, measured once."
        if fast.least_per_s <= large.most_per_s:
            return f"{begins}, which the spread of the processes covers: no difference is shown."
        return f"{begins} than the largest."

    @property
    def _made(self) -> str:
        if not self.rebatched:
            return ""
        return "The data yields batches of its own: add Pipeline(batch_size=...) to train so."

    @property
    def _advice(self) -> list[str]:
        lines = [f"Learning rate for {each.batch:,}: {each.words}." for each in self.rates]
        return [*lines, CAVEAT] if any(each.factor != 1 for each in self.rates) else lines


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _row(each: Tried) -> tuple[str, ...]:
    figures = (each.peak_mib, each.step_ms, each.examples_per_s, each.least_per_s, each.most_per_s)
    outcome = "trains" if each.passed else f"fails ({each.kind})"
    formats = (",.0f", ",.2f", ",.0f", ",.0f", ",.0f")
    cells = (
        "" if value is None else format(value, f) for value, f in zip(figures, formats, strict=True)
    )
    return (f"{each.batch:,}", outcome, *cells, str(each.processes))
