"""The result of a search for the fastest chain: the candidates, the chain, and the report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from tfopt.job.job import Chain
from tfopt.job.recipe_file import RecipeFile, write_recipe
from tfopt.measure.assemble import FoundSoFar, assemble
from tfopt.measure.blocks import Span
from tfopt.measure.job_facts import JobFacts
from tfopt.measure.rehearsal import REFERENCE, Rehearsed
from tfopt.measure.rounds import Budget, Measurements, RoundsPlan
from tfopt.measure.search_space import Changes
from tfopt.measure.statistics import LEAST_ROUNDS, compare
from tfopt.measure.trainings import Trainings
from tfopt.measure.variant import Variant
from tfopt.report import format as fmt
from tfopt.report.bench_report import (
    Asked,
    BenchReport,
    Provenance,
    Quality,
    Recommendation,
)
from tfopt.report.block import Block
from tfopt.report.footprint import Comparison
from tfopt.report.training import Figures

Objective = Literal["training", "step", "memory", "energy", "time-to-accuracy"]

LEAST_S = 20.0  # of a budget
INTERRUPTED = "it was interrupted"
# A trial is short: what it cannot tell, the fresh rounds at the end can.
SPAN = Span(windows=10, window_ms=50.0, warm_up_s=0.3)
FRESH = Budget(3, 16, 0.02)  # rounds at the end, for as long as the budget lasts


@dataclass(eq=False)
class Candidate:
    """What is known of a setting.

    Attributes:
        values: What is to be small, once for each window, by the round.
        trainings: Whole trainings, by the seed.
        out: Why it is not chosen; nothing where it still may be.
        beaten_by: The candidate that won a race against it, and the ratio of their times.
    """

    setting: Changes
    values: dict[int, tuple[float, ...]] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    trainings: dict[int, Figures] = field(default_factory=dict)
    out: str = ""
    beaten_by: tuple[Candidate, float] | None = None

    def best(self, first: int = 0) -> float:
        """Return the least of the rounds from ``first`` on: what disturbs a process only adds."""
        found = [statistics.median(v) for number, v in self.values.items() if number >= first]
        return min(found, default=math.inf)

    def compared(self, reference: Candidate, first: int = 0) -> Comparison | None:
        """Compare with another over the rounds from ``first`` on that both were in."""
        shared = sorted(self.values.keys() & reference.values.keys())
        shared = [number for number in shared if number >= first]
        if self is reference or len(shared) < LEAST_ROUNDS:
            return None
        return compare([reference.values[n] for n in shared], [self.values[n] for n in shared])


@dataclass(frozen=True)
class Tuned:
    """The chain that trains fastest of those tried, and the report of all of them.

    Attributes:
        chain: Empty where nothing was faster than the job as it is.
        slower: What fell behind, with its speed beside the best of its race: "jit_compile True
            0.58x".
        notes: What else is to be said of the search.
        stopped: Why not everything was tried; empty where it was.
    """

    job: str
    arguments: Mapping[str, Any]
    chain: Chain
    report: BenchReport
    slower: tuple[str, ...]
    notes: tuple[str, ...]
    stopped: str

    @property
    def interrupted(self) -> bool:
        """Return whether the user stopped it."""
        return self.stopped == INTERRUPTED

    def __str__(self) -> str:
        """Return the chain as Python writes it, and what it brought."""
        assert self.report.recommendation is not None
        lines = [repr(self.chain), f"  {self.report.recommendation.brought}"]
        return "\n".join([*lines, *(f"  not: {why}" for why in self.report.recommendation.dropped)])

    def write_recipe(self, path: str | Path) -> Path:
        """Write the job and the chain as a recipe file, for ``tfopt run`` and ``tfopt bench``."""
        title = f"{self.report.title}, tuned"
        file = RecipeFile(
            title=title, job=self.job, arguments=dict(self.arguments), chain=self.chain
        )
        return write_recipe(file, path)


@dataclass(eq=False)
class Found:
    """What a search was asked for, and everything that it has found so far.

    Attributes:
        known: The candidates by their settings, the job as it is first.
        chosen: The candidate that was confirmed; the job as it is where none was.
        confirmed: The chosen one against the job as it is, in fresh rounds.
        whole: The same of whole trainings, where they were made.
        quality: Of the whole trainings, or why it is not known.
        stopped: Why not everything was tried; empty where it was.
    """

    job: str
    arguments: dict[str, Any]
    objective: Objective
    budget_s: float
    seeds: int
    tolerance_points: float
    provenance: Provenance = field(init=False)
    seen: JobFacts = field(init=False)
    known: dict[Changes, Candidate] = field(init=False, default_factory=dict)
    chosen: Candidate = field(init=False)
    confirmed: Comparison | None = field(init=False, default=None)
    whole: Comparison | None = field(init=False, default=None)
    quality: Quality | str = field(init=False, default="")
    remarks: list[str] = field(init=False, default_factory=list)
    stopped: str = field(init=False, default="")

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Return all candidates, the job as it is first."""
        return tuple(self.known.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what else is to be said of the search."""
        stopped = [f"not everything was tried: {self.stopped}"] if self.stopped else []
        return (*self.remarks, *stopped)

    def tuned(self) -> Tuned:
        """Return the chain with the report of all candidates."""
        return Tuned(
            job=self.job,
            arguments=self.arguments,
            chain=self._chain(self.chosen),
            report=self._report(),
            slower=tuple(self._slower()),
            notes=self.notes,
            stopped=self.stopped,
        )

    def _chain(self, candidate: Candidate) -> Chain:
        return candidate.setting.chain(self.seen)

    def _report(self) -> BenchReport:
        names = {each: str(each.setting) for each in self.candidates if each.blocks}
        names[self.candidates[0]] = REFERENCE
        variants = {
            each: Variant(name, self.job, self._chain(each), self.arguments)
            for each, name in names.items()
        }
        tries = {name: tuple((block,) for block in each.blocks) for each, name in names.items()}
        plan = RoundsPlan(tuple(variants.values()), span=SPAN, budget=FRESH)
        findings = FoundSoFar(
            title=self.job,
            command=f"tfopt.tune({self.job!r}, budget_s={self.budget_s:g})",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            provenance=self.provenance,
            asked=_ASKED,
            seeds=tuple(range(self.seeds)),
            tolerance_points=self.tolerance_points,
            skipped={
                "study": "tune does not look where the time goes",
                "quality": "only what may be chosen is trained whole",
            },
            rehearsed=[
                Rehearsed(each, "measured", None, (), self.seen.data, 0.0)
                for each in variants.values()
            ],
            measurements=Measurements(plan, tries),
            trainings={
                name: Trainings(tuple(each.trainings.values()))
                for each, name in names.items()
                if each.trainings
            },
            notes=[each[0].upper() + each[1:] + "." for each in self.notes],
        )
        report = assemble(findings, complete=not self.stopped)
        keep = repr(self._chain(self.chosen))
        advice = Recommendation(keep, self._brought(), tuple(self._dropped()))
        return replace(report, recommendation=advice)

    def _brought(self) -> str:
        if self.chosen is self.candidates[0]:
            return "nothing: no chain was shown to be faster than the job as it is"
        words = "not confirmed in fresh rounds"
        if self.confirmed is not None:
            words = self._in_words(self.confirmed)
        if self.whole is not None:
            speed = fmt.speed_and_interval(self.whole)
            words += f"; whole trainings {speed} as fast over {self.seeds} seeds"
        if isinstance(self.quality, Quality):
            words += f"; {self.quality.points:+.2f} points of {self.quality.metric}"
        elif self.quality:
            words += f"; quality {self.quality}"
        return words

    def _in_words(self, confirmed: Comparison) -> str:
        what = _WORDS[self.objective]
        if self.objective in ("memory", "energy"):
            low, high = confirmed.low, confirmed.high
            return f"{confirmed.ratio:.2f} of {what} ({low:.2f} to {high:.2f})"
        return f"{fmt.speed_and_interval(confirmed)} as fast, by {what}"

    def _dropped(self) -> list[str]:
        dropped = [f"{each.setting}: {each.out}" for each in self.candidates if each.out]
        for each in self.candidates:
            if each.beaten_by is not None and not each.out and each is not self.chosen:
                leader, ratio = each.beaten_by
                speed = f"{1 / ratio:.2f}\N{MULTIPLICATION SIGN}"
                dropped.append(f"{each.setting}: {speed} the speed of {leader.setting}")
        return dropped

    def _slower(self) -> Iterator[str]:
        """Yield what fell behind and is not in the chain, by the setting that was changed."""
        found: dict[str, float] = {}
        for each in self.candidates:
            if each.beaten_by is None or each.out:
                continue
            leader, ratio = each.beaten_by
            for name, value in each.setting.changes(leader.setting):
                if value is not None and getattr(self.chosen.setting, name) != value:
                    found.setdefault(f"{name} {value}", 1 / ratio)
        for what, speed in found.items():
            yield f"{what} {speed:.2f}\N{MULTIPLICATION SIGN}"


_WORDS: Mapping[str, str] = {
    "training": "the predicted time of the whole training",
    "step": "the time of an example",
    "memory": "peak memory",
    "energy": "the energy of an example",
    "time-to-accuracy": "the time to the accuracy of the job as it is",
}
_ASKED = Asked(
    kind="tune",
    quick=True,
    windows=SPAN.windows,
    window_ms=SPAN.window_ms,
    warm_up_s=SPAN.warm_up_s,
    rounds_at_least=FRESH.at_least,
    rounds_at_most=FRESH.at_most,
    half_width=FRESH.half_width,
    seed=0,
)
