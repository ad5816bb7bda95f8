"""Say by experiment what an input pipeline waits for, and which change brings how much.

Processes that take turns (:mod:`tfopt.measure.engine`) train the job as it is, run its step on a
batch that is there already, drain the pipeline up to each of its stages, and train under each
change that can be made. What brings something alone is then measured together.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, islice
from multiprocessing.connection import Connection
from typing import Any, Literal

from tfopt.data.pipeline import Pipeline
from tfopt.data.stage_changes import CHANGES, applicable
from tfopt.data.stages import Stage
from tfopt.errors import UserError
from tfopt.job.job import Job
from tfopt.job.transform import Chain
from tfopt.measure.advice import in_words
from tfopt.measure.children import Lost, carried_out
from tfopt.measure.engine import Candidate, Engine, compared, copies
from tfopt.measure.input_ways import AsItIs, Changed, Drained, Resident, stages_in
from tfopt.measure.job_facts import facts_of
from tfopt.measure.targets import Target
from tfopt.measure.turn_taking import FILLS_S, fill
from tfopt.report.display import Display
from tfopt.report.statistics import Comparison
from tfopt.run import Prepared, prepared

Bound = Literal["nothing", "Python", "disk", "processor", "handing over"]

_PROCESSES = 3  # of what all is compared with
_COPIES = 2  # of a change
_ROUNDS = 12
_WAITS = 0.1  # of a step, for certain: less is not the input's fault
# Of a step, for a batch made ahead: of the 30 pipelines of benchmarks/input_faults the healthy ones
# took up to 0.51, and those with a fault 1.09 or more, one 0.73 on a slow day.
_AHEAD = 0.75
# Of the time, at most, for a change to be worth its words: processes of the same program differ by
# some percent.
_BRINGS = 0.95
# Of one core, while a stage is drained: below it, the stage waits for something else.
_COMPUTES = 0.5
_WORDS: Mapping[Bound, str] = {
    "nothing": "The input is not what holds the training up",
    "Python": "Python, which runs one element at a time",
    "disk": "the disk or the network: the processor waits",
    "processor": "the processor",
    "handing over": "handing batches to the step, not making them",
}


@dataclass(frozen=True)
class StageTime:
    """A stage: the time of a batch up to it, and how many cores were busy meanwhile."""

    words: str
    python: bool
    ms: float
    cores: float


TriedChanges = list[tuple[Changed, Comparison | str]]
"""Changes to the input: the time of ``fit`` under them over that without, or why not."""


InputLook = tuple[list[Drained], list[Changed], list[str]]
"""What can be drained, the changes that can be made, and remarks."""


def look_at_input(job: Job, chain: Chain, pipe: Connection) -> InputLook:
    """Prepare the job as for a training, and return what there is to measure of its input."""
    with prepared(job, chain, endless=True) as ready:
        stages = stages_in(ready)
        drains = [Drained(n, stage.words, stage.python) for n, stage in enumerate(stages)]
        return drains, list(_changes(ready)), list(_remarks(stages, ready))


@dataclass(frozen=True)
class InputDiagnosis:
    """What an input pipeline is bound by, and what to do; printed, a table.

    Attributes:
        resident: The time of the step on a batch that is there, of ``fit``'s.
        tried: By the name of the change.
        stage: The stage that takes longest; None where nothing is to blame.
        remedy: The changes that bring most, by name; empty where none does.
        chain: The given one, with the ``Pipeline`` that helps; changes to a dataset are not in it.
    """

    fit_ms: float
    resident: Comparison
    stages: tuple[StageTime, ...]
    tried: Mapping[str, Comparison | str]
    remarks: tuple[str, ...]
    bound: Bound
    stage: str | None
    remedy: tuple[str, ...]
    chain: Chain

    def __str__(self) -> str:
        waits = 1 - self.resident.ratio
        lines = [
            f"A step takes {self.fit_ms:.3g} ms, of which it waits {waits:.0%} "
            f"({1 - self.resident.high:.0%} to {1 - self.resident.low:.0%}) for its input."
        ]
        if self.bound == "nothing":
            in_time = "Batches take less time than a step. " * (self.resident.high < 1 - _WAITS)
            lines.append(f"{in_time}{_WORDS['nothing']}.")
        else:
            at = f", in {self.stage}" if self.stage else ""
            lines.append(f"What binds it is {_WORDS[self.bound]}{at}.")
        width = max((len(stage.words) for stage in self.stages), default=0)
        for stage, adds in zip(self.stages, _added_ms(self.stages), strict=True):
            lines.append(
                f"  {stage.words:{width}}  {stage.ms:8.3g} ms a batch up to here, "
                f"{adds:8.3g} more, {stage.cores:.1f} cores"
            )
        for name, found in self.tried.items():
            lines.append(f"  with {name}: {found if isinstance(found, str) else in_words(found)}")
        if "pipeline" in self.remedy:
            lines.append(f"Do: {self.chain!r}")
        elif self.remedy:  # the changed lines of the job's own dataset
            lines += [f"Do: {CHANGES[name]}" for name in self.remedy]
        elif self.bound != "nothing":
            lines.append("No change that was tried brings something: make what it reads cheaper.")
        return "\n".join([*lines, *(f"note: {remark}" for remark in self.remarks)])

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON values."""
        return {**asdict(replace(self, chain=Chain())), "chain": repr(self.chain)}


def diagnose_input(target: Target, display: Display | None = None) -> InputDiagnosis:
    """Measure a job's input in processes that take turns, and say what binds it.

    Example:
        print(diagnose_input(resolve_target("my_package.train:job")))
    """
    try:
        look = carried_out(target, look_at_input)
    except Lost as lost:
        raise UserError("The input cannot be measured.", received=str(lost)) from lost
    with Engine(display) as engine:
        return _measured(engine, target, look)


def judged(
    fit_ms: float,
    resident: Comparison,
    stages: tuple[StageTime, ...],
    tried: TriedChanges,
    remarks: tuple[str, ...],
    given: Chain,
) -> InputDiagnosis:
    """Return the diagnosis that the measurements support."""
    best, found = _best(tried), {way.name: comparison for way, comparison in tried}
    bound, stage = _bound(stages, fit_ms * (1 - resident.ratio))
    measured = any(isinstance(comparison, Comparison) for comparison in found.values())
    borne = measured and best is None and bound != "handing over"
    # On a few cores a step is slower beside any input at all, which is no fault of the input: made
    # ahead, or to be borne, it keeps up.
    ahead = stages and (borne or stages[-1].words.startswith("prefetch"))
    keeps_up = ahead and stages[-1].ms < _AHEAD * fit_ms * resident.ratio
    if resident.high >= 1 - _WAITS or keeps_up:
        bound, stage, best = "nothing", None, None
    remedy, chain = best.changes if best else (), given
    if best and best.pipeline is not None:  # in the place of its own
        others = [part for part in given.parts if not isinstance(part, Pipeline)]
        chain = Chain((*others, best.pipeline))
    return InputDiagnosis(fit_ms, resident, stages, found, remarks, bound, stage, remedy, chain)


def _bound(stages: Sequence[StageTime], waits_ms: float) -> tuple[Bound, str | None]:
    if not stages or stages[-1].ms < waits_ms / 2:
        return "handing over", None
    added = _added_ms(stages)
    slowest = stages[added.index(max(added))]
    if slowest.python:
        return "Python", slowest.words
    return ("processor" if slowest.cores >= _COMPUTES else "disk"), slowest.words


def _added_ms(stages: Sequence[StageTime]) -> list[float]:
    """Return what each stage takes beyond those before it."""
    before = accumulate((stage.ms for stage in stages), max, initial=0.0)
    return [max(stage.ms - so_far, 0.0) for stage, so_far in zip(stages, before, strict=False)]


def _best(tried: TriedChanges) -> Changed | None:
    """Return the change that is shown to bring most; fewer changes where they bring as much."""
    certain = [
        (way, found.ratio)
        for way, found in tried
        if isinstance(found, Comparison) and found.high < 1 and found.ratio < _BRINGS
    ]
    least = min((ratio for _, ratio in certain), default=1.0)
    near = [way for way, ratio in certain if ratio <= least / _BRINGS]
    return min(near, key=lambda way: len(way.changes), default=None)


# The measurements.


def _measured(engine: Engine, target: Target, look: InputLook) -> InputDiagnosis:
    drains, changes, remarks = look

    def processes(way: AsItIs | Resident | Drained | Changed, count: int) -> list[Target]:
        return copies(replace(target, name=way.name, way=way), count)

    def tried(ways: Sequence[Changed]) -> TriedChanges:
        found = _beside(engine, fits, [processes(way, _COPIES) for way in ways])
        return [
            (way, compared(fits, own) or _why_not(own))
            for way, own in zip(ways, found, strict=True)
        ]

    fits = engine.admit(processes(AsItIs(), _PROCESSES))
    each_once = [processes(drain, 1) for drain in drains]
    alone, *drained = _beside(engine, fits, [processes(Resident(), _PROCESSES), *each_once])
    resident = compared(fits, alone)
    if resident is None:
        raise UserError("The input cannot be measured.", received=_why_not([*fits, *alone]))
    found = tried(changes)
    helped = [
        way
        for way, gain in found
        if way.pipeline is None and isinstance(gain, Comparison) and gain.ratio < _BRINGS
    ]
    if len(helped) > 1:
        found += tried([Changed(tuple(name for way in helped for name in way.changes))])
    return judged(
        fit_ms=statistics.median(_batch_ms(candidate) for candidate in fits if candidate.turns),
        resident=resident,
        stages=tuple(
            StageTime(drain.words, drain.python, _batch_ms(own), round(statistics.median(busy), 2))
            for drain, candidates in zip(drains, drained, strict=True)
            for own in candidates
            if (busy := [turn.processor_s / turn.lasted_s for turn in own.turns.values()])
        ),
        tried=found,
        remarks=tuple(remarks),
        given=target.chain,
    )


def _beside(
    engine: Engine, fits: Sequence[Candidate], ways: Sequence[Sequence[Target]]
) -> list[list[Candidate]]:
    """Give the processes of each way turns beside ``fit``, in groups where memory is short."""
    found: list[list[Candidate]] = []
    at_once = max((engine.capacity - len(fits)) // _PROCESSES, 1)
    for n in range(0, len(ways), at_once):
        group = ways[n : n + at_once]
        started = engine.admit([variant for own in group for variant in own])
        if not started:
            raise engine.no_room()
        engine.take_rounds([*fits, *started], _ROUNDS)
        engine.dismiss(started)
        each = iter(started)
        found += [[*islice(each, len(own))] for own in group]
    return found


def _batch_ms(candidate: Candidate) -> float:
    assert candidate.ready is not None
    return 1000 * candidate.example_s() * (candidate.ready.batch_size or 1)


def _why_not(candidates: Sequence[Candidate]) -> str:
    reasons = (candidate.out for candidate in candidates if candidate.out)
    return next(reasons, "there is no memory for two processes of it")


def _changes(ready: Prepared) -> Iterator[Changed]:
    """Yield the ways to ``fit`` under each change that can be made."""
    train, facts = ready.examples["train"], facts_of(ready)
    parts = ready.run.chain.parts
    given = next((part for part in parts if isinstance(part, Pipeline)), None)
    if given is None and train.kind == "dataset":
        yield from (Changed((name,)) for name in applicable(train.given))
    else:
        base = given or Pipeline(examples=facts.generated)
        if given is None:
            yield Changed(("pipeline",), base)
        cacheable = not facts.endless and not facts.augmented and train.kind != "arrays"
        if base.cache is None and cacheable:
            yield Changed(("pipeline", "cache"), replace(base, cache="memory"))


def _remarks(stages: Sequence[Stage], ready: Prepared) -> Iterator[str]:
    batch = ready.facts.batch_size or 1
    for stage in stages:
        if stage.kind == "shuffle":
            buffer = int(stage.words[len("shuffle(") : -1]) * stage.examples
            if buffer < 4 * batch:
                yield (
                    f"{stage.words} holds {buffer:,} examples for batches of {batch}: batches "
                    "hardly change from epoch to epoch; shuffle before batch, and more of them"
                )
    if not fill(ready.train_input, ready.facts.steps_per_epoch):
        yield f"an epoch was not over after {FILLS_S:g} s: what a cache holds was not there"
