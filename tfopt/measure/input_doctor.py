"""Say by experiment what an input pipeline waits for, and which change brings how much.

In one process, by turns: ``fit`` as it is; its step on a batch that is there already; the pipeline
drained up to each of its stages, with nothing trained; and ``fit`` under each change that can be
made. What brings something alone is then measured together.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from tfopt.data.fit_data import kind_of
from tfopt.data.pipeline import Pipeline
from tfopt.data.repair_input import CHANGES, Change, RepairInput
from tfopt.errors import UserError
from tfopt.job.job import Chain, Job, Transform
from tfopt.measure.blocks import Span
from tfopt.measure.process import run_worker
from tfopt.measure.resident import first_batch
from tfopt.measure.statistics import compare
from tfopt.measure.targets import Target
from tfopt.measure.tasks import Done, Progress, Task
from tfopt.measure.turns import Mode, circumstances_of, drain, resident_mode
from tfopt.report.footprint import Comparison
from tfopt.report.strict import decode
from tfopt.run import Prepared, prepared

Bound = Literal["nothing", "Python", "disk", "processor", "handing over"]

SPAN = Span(windows=2, window_ms=100.0, warm_up_s=0.4)
_TURNS = 8
_WAITS = 0.1  # of a step, for certain: less is not the input's fault
# Of a step, for a batch made ahead: of the 30 pipelines of benchmarks/input_faults the healthy ones
# took up to 0.51, and those with a fault 1.09 or more, one 0.73 on a slow day.
_AHEAD = 0.75
_BRINGS = 0.97  # of the time, at most, for a change to be worth its words
# Of one core, while a stage is drained: below it, the stage waits for something else.
_COMPUTES = 0.5
_FILLS_S = 60.0
_WORDS: Mapping[Bound, str] = {
    "nothing": "The input is not what holds the training up",
    "Python": "Python, which runs one element at a time",
    "disk": "the disk or the network: the processor waits",
    "processor": "the processor",
    "handing over": "handing batches to the step, not making them",
}


@dataclass(frozen=True)
class StageTime:
    """A stage: what a batch takes up to it, and how many cores that had work for meanwhile."""

    words: str
    python: bool
    ms: float
    cores: float


@dataclass(frozen=True)
class Tried:
    """Changes to the input: ``fit`` under them and as it is, turn by turn; or why not."""

    name: str
    changes: tuple[str, ...]
    turns_ms: tuple[tuple[float, ...], ...]
    fit_ms: tuple[tuple[float, ...], ...]
    reason: str | None

    def found(self) -> Comparison | str:
        """Return the time of ``fit`` under the changes as a share of that without."""
        return self.reason or compare(self.fit_ms, self.turns_ms)


@dataclass(frozen=True)
class InputTimes:
    """The measurements of one process."""

    fit_ms: tuple[tuple[float, ...], ...]
    resident_ms: tuple[tuple[float, ...], ...]
    stages: tuple[StageTime, ...]
    tried: tuple[Tried, ...]
    remarks: tuple[str, ...]
    examples: int | None
    """How many a generator yields, which Pipeline has to be told."""


@dataclass(frozen=True)
class LookAtInput(Task[InputTimes]):
    """Measure the input of a job; the model trains on meanwhile and is thrown away."""

    kind: ClassVar[str] = "input-look"

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        with prepared(job, endless=True) as ready:
            return Done(asdict(look_at_input(ready)), ready.effects, ready.data.summary)

    def read(self, value: Mapping[str, Any]) -> InputTimes:
        return decode(InputTimes, dict(value))


@dataclass(frozen=True)
class InputDiagnosis:
    """What an input pipeline is bound by, and what to do; it prints as a table.

    Attributes:
        resident: The time of the step on a batch that is there, of ``fit``'s.
        stage: The stage that takes longest; None where nothing is to blame.
        remedy: The changes that bring most, by name; empty where none does.
    """

    fit_ms: float
    resident: Comparison
    bound: Bound
    stage: str | None
    stages: tuple[StageTime, ...]
    tried: Mapping[str, Comparison | str]
    remedy: tuple[str, ...]
    chain: Chain
    remarks: tuple[str, ...]

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
        width = max((len(each.words) for each in self.stages), default=0)
        before = 0.0
        for each in self.stages:
            adds = max(each.ms - before, 0.0)
            before = max(before, each.ms)
            lines.append(
                f"  {each.words:{width}}  {each.ms:8.3g} ms a batch up to here, "
                f"{adds:8.3g} more, {each.cores:.1f} cores"
            )
        for name, found in self.tried.items():
            told = found if isinstance(found, str) else _in_words(found)
            lines.append(f"  with {name}: {told}")
        if self.remedy:
            lines.append(f"Do: {self.chain!r}")
            lines += [f"  {name}: {CHANGES[name]}" for name in self.remedy if name in CHANGES]
        elif self.bound != "nothing":
            lines.append("No change that was tried brings something: make what it reads cheaper.")
        return "\n".join([*lines, *(f"note: {remark}" for remark in self.remarks)])

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON values."""
        return {**asdict(replace(self, chain=Chain())), "chain": repr(self.chain)}


def diagnose_input(target: Target) -> InputDiagnosis:
    """Measure a job's input in a process of its own and say what binds it.

    Example:
        print(diagnose_input(resolve_target("my_package.train:job")))
    """
    found = run_worker(
        LookAtInput(), job=target.job, arguments=target.arguments, chain=target.chain
    )
    if found.value is None:
        raise UserError("The input cannot be measured.", received=found.reason or "no reason")
    return judged(found.value, target.chain)


def judged(seen: InputTimes, given: Chain) -> InputDiagnosis:
    """Return what the measurements allow to say."""
    resident = compare(seen.fit_ms, seen.resident_ms)
    fit_ms = statistics.median(statistics.median(turn) for turn in seen.fit_ms)
    tried = {each.name: each.found() for each in seen.tried}
    best = _best(seen.tried, tried)
    bound, stage = _bound(seen.stages, fit_ms * (1 - resident.ratio))
    measured = [each for each in tried.values() if not isinstance(each, str)]
    borne = bool(measured) and best is None and bound != "handing over"
    keeps_up = _keeps_up(seen.stages, fit_ms * resident.ratio, borne=borne)
    if resident.high >= 1 - _WAITS or keeps_up:
        bound, stage, best = "nothing", None, None
    return InputDiagnosis(
        fit_ms=fit_ms,
        resident=resident,
        bound=bound,
        stage=stage,
        stages=seen.stages,
        tried=tried,
        remedy=() if best is None else best.changes,
        chain=given if best is None else _with(given, best, seen.examples),
        remarks=seen.remarks,
    )


def _keeps_up(stages: Sequence[StageTime], step_ms: float, *, borne: bool) -> bool:
    """Return whether batches take less time than a step, and are made ahead or to be borne.

    On a few cores a step is slower beside any input at all, which is no fault of the input.
    """
    if not stages or not (borne or stages[-1].words.startswith("prefetch")):
        return False
    return stages[-1].ms < _AHEAD * step_ms


def _bound(stages: Sequence[StageTime], waits_ms: float) -> tuple[Bound, str | None]:
    if not stages or stages[-1].ms < waits_ms / 2:
        return "handing over", None
    before, slowest, most = 0.0, stages[0], 0.0
    for each in stages:
        if each.ms - before > most:
            slowest, most = each, each.ms - before
        before = max(before, each.ms)
    if slowest.python:
        return "Python", slowest.words
    return ("processor" if slowest.cores >= _COMPUTES else "disk"), slowest.words


def _best(tried: Sequence[Tried], against: Mapping[str, Comparison | str]) -> Tried | None:
    """Return the change that is shown to bring most; fewer changes where they bring as much."""
    found = [
        (verdict.ratio, each)
        for each in tried
        for verdict in [against[each.name]]
        if not isinstance(verdict, str) and verdict.verdict == "faster" and verdict.ratio < _BRINGS
    ]
    if not found:
        return None
    least = min(ratio for ratio, _ in found)
    near = [each for ratio, each in found if ratio <= least / _BRINGS]
    return min(near, key=lambda each: len(each.changes))


def _with(given: Chain, best: Tried, examples: int | None) -> Chain:
    """Return the chain with what is to be done: in the place of one of its kind, or behind."""
    if set(best.changes) <= set(CHANGES):
        return Chain((*given.parts, RepairInput(cast(tuple[Change, ...], best.changes))))
    parts = [each for each in given.parts if not isinstance(each, Pipeline)]
    old = next((each for each in given.parts if isinstance(each, Pipeline)), None)
    old = old or Pipeline(examples=examples)
    cache = "memory" if "cache" in best.changes else old.cache
    return Chain((*parts, replace(old, cache=cache)))


def _in_words(found: Comparison) -> str:
    return f"{found.ratio:.3g} of the time ({found.low:.3g} to {found.high:.3g}), {found.verdict}"


# The measurements.


def look_at_input(ready: Prepared, span: Span = SPAN) -> InputTimes:
    """Measure the input of a job that was prepared as endless."""
    each = ready.model.steps_per_execution
    fit = Mode(ready, each, warm_up_s=span.warm_up_s, must_work=True)
    began = time.perf_counter()
    fit.open(_FILLS_S, 1)
    opening_s = time.perf_counter() - began
    quiet = replace(ready, job=ready.job.with_(callbacks=()))
    resident = resident_mode(ready, first_batch(ready), each, span)
    stages = _stages(ready)
    drains = [_Drain(_bare(quiet, s.dataset), s.examples, ready, span) for s in stages]
    changes = dict(_changes(ready, span))
    modes = [fit, resident, *drains, *changes.values()]
    for turn in range(_TURNS):
        for mode in modes if turn % 2 == 0 else reversed(modes):
            mode.turn(span.windows, span.window_ms)
    if resident.failed is not None:
        raise UserError("The step does not run on one batch alone.", received=resident.failed)
    remarks = [*_remarks(stages, ready)]
    fit_ms = tuple(fit.turns_ms)
    tried = [_tried(name, mode, fit_ms) for name, mode in changes.items()]
    helped = [each.changes[0] for each in tried if _may_help(each)]
    if len(helped) > 1:
        together = _fit_under(ready, helped, span)
        for _ in range(_TURNS):
            fit.turn(span.windows, span.window_ms)
            together.turn(span.windows, span.window_ms)
        beside = tuple(fit.turns_ms[_TURNS:])
        tried.append(_tried(" and ".join(helped), together, beside, helped))
    if opening_s > _FILLS_S:
        remarks.append(
            f"an epoch was not over after {_FILLS_S:g} s: what a cache holds was not there"
        )
    times = tuple(
        StageTime(stage.words, stage.python, drained.ms, drained.cores)
        for stage, drained in zip(stages, drains, strict=True)
        if drained.failed is None
    )
    around = circumstances_of(ready)
    examples = None if around.endless else around.generated
    resident_ms = tuple(resident.turns_ms)
    return InputTimes(fit_ms, resident_ms, times, tuple(tried), tuple(remarks), examples)


class _Drain(Mode):
    """A mode that drains a pipeline up to a stage, and counts the cores that it keeps busy."""

    def __init__(self, ready: Prepared, examples: float, whole: Prepared, span: Span) -> None:
        # As many elements a call as make a batch.
        elements = max(round((whole.facts.batch_size or 1) / examples), 1)
        self.busy: list[float] = []
        if elements > 1:
            # Without a step for each: sharding passes over the others in C++.
            ready = replace(ready, train_input=ready.train_input.shard(elements, 0))
        super().__init__(ready, 1, drain(1), warm_up_s=span.warm_up_s)

    def turn(self, windows: int, window_ms: float) -> None:
        wall, processor = time.perf_counter(), _processor_s()
        super().turn(windows, window_ms)
        self.busy.append((_processor_s() - processor) / (time.perf_counter() - wall))

    @property
    def ms(self) -> float:
        """Return the milliseconds of a batch."""
        return statistics.median(statistics.median(turn) for turn in self.turns_ms[1:])

    @property
    def cores(self) -> float:
        """Return how many cores were busy; the first turn compiles."""
        return round(statistics.median(self.busy[1:]), 2)


def _processor_s() -> float:
    """Return the seconds in which this process computed, or would have if a core had been free."""
    waited_ns = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # a thread that has ended meanwhile
            waited_ns += int(task.read_text().split()[1])
    return time.process_time() + waited_ns / 1e9


def _bare(ready: Prepared, dataset: Any) -> Prepared:
    """Return the job with another input, of a length that nobody knows."""
    return replace(
        ready,
        job=ready.job.with_(steps_per_epoch=None),
        facts=replace(ready.facts, steps_per_epoch=None),
        train_input=dataset,
    )


def _stages(ready: Prepared) -> Sequence[Any]:
    from tfopt.data.stages import Stage, stages_of

    batch = ready.facts.batch_size
    if kind_of(ready.train_input) == "dataset":
        return stages_of(ready.train_input, batch)
    if kind_of(ready.train_input) in ("generator", "pydataset"):
        kind = kind_of(ready.train_input)
        return [Stage(kind, kind, ready.train_input, python=True, examples=batch or 1)]
    return []


def _changes(ready: Prepared, span: Span) -> Iterator[tuple[str, Mode]]:
    """Yield the modes of ``fit`` under each change that can be made."""
    from tfopt.data.stages import applicable

    given = next((each for each in ready.job.applied if isinstance(each, Pipeline)), None)
    if given is None and kind_of(ready.data.train) == "dataset" and ready.job.input is None:
        for name in applicable(ready.data.train):
            yield name, _fit_under(ready, (name,), span)
    elif given is not None or ready.job.input is None:
        setting = circumstances_of(ready)
        base = given or Pipeline(examples=None if setting.endless else setting.generated)
        others = {} if given is not None else {"Pipeline()": base}
        if base.cache is None and not setting.endless and kind_of(ready.data.train) != "arrays":
            others['Pipeline(cache="memory")'] = replace(base, cache="memory")
        for name, pipeline in others.items():
            yield name, _fit_through(ready, pipeline, span)


def _fit_under(ready: Prepared, changes: Sequence[str], span: Span) -> Mode:
    from tfopt.data.stages import changed

    batch = ready.facts.batch_size or 1
    try:
        made = changed(ready.data.train, changes, sample=16 * batch)
    except Exception as error:
        return Mode.broken(ready, error)
    return Mode(_bare(ready, made), ready.model.steps_per_execution, warm_up_s=span.warm_up_s)


def _fit_through(ready: Prepared, pipeline: Pipeline, span: Span) -> Mode:
    facts = replace(ready.facts, steps_per_epoch=ready.job.steps_per_epoch)
    try:
        made, _ = pipeline.read(ready.data.train, facts)
    except Exception as error:
        return Mode.broken(ready, error)
    through = replace(ready, train_input=made)
    mode = Mode(through, ready.model.steps_per_execution, warm_up_s=span.warm_up_s)
    if pipeline.cache is not None:
        began = time.perf_counter()
        mode.open(_FILLS_S, 1)
        if time.perf_counter() - began > _FILLS_S:
            mode.failed = f"a cache was not full after {_FILLS_S:g} s"
    return mode


def _tried(
    name: str, mode: Mode, fit_ms: tuple[tuple[float, ...], ...], changes: Sequence[str] = ()
) -> Tried:
    if not changes:
        changes = ("pipeline", "cache") if "cache=" in name else (name,)
    turns = tuple(mode.turns_ms) if mode.failed is None else ()
    return Tried(name, tuple(changes), turns, fit_ms, mode.failed)


def _may_help(tried: Tried) -> bool:
    """Return whether ``fit`` was faster under a change of the job's own dataset."""
    found = tried.found()
    return tried.changes[0] in CHANGES and not isinstance(found, str) and found.ratio < _BRINGS


def _remarks(stages: Sequence[Any], ready: Prepared) -> Iterator[str]:
    batch = ready.facts.batch_size or 1
    for stage in stages:
        if stage.kind == "shuffle":
            buffer = int(stage.words[len("shuffle(") : -1]) * stage.examples
            if buffer < 4 * batch:
                yield (
                    f"{stage.words} holds {buffer:,} examples for batches of {batch}: batches "
                    "hardly change from epoch to epoch; shuffle before batch, and more of them"
                )
