"""The result of a search for batch sizes: each size tried, the largest and the fastest that train.

What was not measured is None; a difference in speed that its interval does not show is none.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tfopt.measure.job_facts import RULES, JobFacts
from tfopt.report import format as fmt
from tfopt.report.statistics import Comparison
from tfopt.train.learning_rate import scaled_learning_rate

INTERRUPTED = "The search was interrupted: not all was tried or measured again."


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
        peak_mib: The most that was held: by TensorFlow of all GPUs, or resident in the process.
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
        return max(each.batch for each in self.tried if each.passed)

    @property
    def fastest(self) -> int:
        """Return the one with most examples a second, of those measured again where some were."""
        return self._fastest.batch

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what there is to say about it, a sentence each."""
        failed = [each for each in self.tried if not each.passed]
        above = [each.batch for each in failed if each.batch > self.largest]
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
    def _fastest(self) -> Tried:
        again = [each for each in self.tried if each.passed and each.processes]
        return max(again or self.tried, key=lambda each: each.examples_per_s)

    @property
    def _speed(self) -> str:
        if self.fastest == self.largest:
            return "It is the fastest as well."
        words = (
            f"The fastest is {self.fastest:,}, with {self._fastest.examples_per_s:,.0f} examples/s"
        )
        if self.comparison is None:
            return f"{words}, measured once: no difference from the largest is certain."
        if self.comparison.verdict != "faster":
            return f"{words}; no difference from the largest is certain."
        return f"{words}: {fmt.speed_in_words(self.comparison)} as the largest."
