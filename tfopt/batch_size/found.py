"""What a search found: every size that was tried, the largest and the fastest that train.

Guarantees: ``largest`` and ``fastest`` were tried, and trained in every process that tried them;
what was not measured is None; a difference in speed that the spread covers is told as none.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tfopt.batch_size.attempts import Attempt, Kind
from tfopt.batch_size.rates import CAVEAT, RateAdvice
from tfopt.batch_size.reasons import failures
from tfopt.compression.tables import table

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
        """All attempts with one size."""
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
        """Whether it trained each time."""
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
    def largest(self) -> int:
        """The largest batch that trained each time it was tried."""
        return self._largest.batch

    @property
    def fastest(self) -> int:
        """The one with most examples a second."""
        return self._fastest.batch

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say about it, a sentence each."""
        told = (
            self._reach,
            *failures(self.tried),
            self._speed,
            self._shares,
            self._made,
            self.stopped,
        )
        return tuple(filter(None, told))

    def __str__(self) -> str:
        lines = [self._title, *table(_HEAD, map(_row, self.tried)), *self.notes]
        return "\n".join([*lines, *self._advice])

    def to_markdown(self) -> str:
        """The same as a table and a list in Markdown."""
        rows = [_HEAD, ("--:", ":--", *["--:"] * 6), *map(_row, self.tried)]
        cells = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        notes = [f"- {each}" for each in (*self.notes, *self._advice)]
        return "\n".join([f"**{self._title}**", "", *cells, "", *notes, ""])

    def to_json(self) -> str:
        """All of it, as JSON."""
        answers = {"largest": self.largest, "fastest": self.fastest, "notes": list(self.notes)}
        return json.dumps({**answers, **asdict(self)}, indent=1, allow_nan=False)

    def plot(self, path: str | Path) -> Path:
        """Draws throughput and memory against batch into a .svg, .png or .pdf file."""
        from tfopt.batch_size.plot import draw

        return draw(self, path)

    @property
    def passed(self) -> tuple[Tried, ...]:
        """Those that train."""
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
        told = f"The fastest is {fast.batch:,}, with {gain:.0%} more examples a second"
        if fast.least_per_s is None or large.most_per_s is None:
            return f"{told}, measured once."
        if fast.least_per_s <= large.most_per_s:
            return f"{told}, which the spread of the processes covers: no difference is shown."
        return f"{told} than the largest."

    @property
    def _shares(self) -> str:
        told = []
        if self.replicas > 1:
            told.append(f"each of {self.replicas} replicas takes its share of a batch")
        if self.accumulate > 1:
            told.append(f"a batch is trained in {self.accumulate} micro-batches")
        return f"{' and '.join(told).capitalize()}." if told else ""

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
    told = "trains" if each.passed else f"fails ({each.kind})"
    formats = (",.0f", ",.2f", ",.0f", ",.0f", ",.0f")
    cells = (
        "" if value is None else format(value, f) for value, f in zip(figures, formats, strict=True)
    )
    return (f"{each.batch:,}", told, *cells, str(each.processes))
