"""Study a variant: where the time of its step goes, and what the step computes.

Each study is a fresh process, of several the median counts; the machine's ceilings are measured in
a process of their own while nothing else runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

from tfopt.errors import UserError
from tfopt.job.job import Job, Transform
from tfopt.measure.blocks import BlockStore
from tfopt.measure.process import run_worker
from tfopt.measure.step_cost import StepCost, roofline
from tfopt.measure.tasks import Done, Progress, Task
from tfopt.measure.time_split import split
from tfopt.measure.turns import Modes
from tfopt.measure.variant import Variant
from tfopt.report.bench_report import Ceilings, Roofline, TimeSplit
from tfopt.report.strict import decode


@dataclass(frozen=True)
class StepTimes:
    """The findings of one process: the modes of a step, and its cost or why it is not known."""

    modes: Modes
    cost: StepCost | None
    no_cost: str | None


@dataclass(frozen=True)
class LookAtStep(Task[StepTimes]):
    """Measure the modes of a variant's step, and count what it does."""

    kind: ClassVar[str] = "look"
    gives: ClassVar[type[Any]] = StepTimes

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        from tfopt.measure.step_cost import step_cost
        from tfopt.measure.turns import measure_modes
        from tfopt.run import prepared

        with prepared(job, endless=True) as ready:
            modes = measure_modes(ready)
            # After the modes: counting traces the step once more.
            cost = step_cost(ready)
            told = (None, cost) if isinstance(cost, str) else (cost, None)
            return Done(asdict(StepTimes(modes, *told)), ready.effects, ready.data.summary)


@dataclass(frozen=True)
class MachineCeilings(Task[Ceilings]):
    """Measure what this machine's first device can do in a dtype; the job is not looked at."""

    dtype: str

    kind: ClassVar[str] = "ceilings"
    gives: ClassVar[type[Any]] = Ceilings

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        import tensorflow as tf

        from tfopt.measure.ceilings import ceilings

        device = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
        return Done(asdict(ceilings(self.dtype, device)), (), "")


@dataclass(frozen=True)
class Study:
    """The findings on one variant; a text is the reason why there is none."""

    split: TimeSplit | str
    roofline: Roofline | str


class Studies:
    """The studies of variants, each in some processes; what is finished is in the store."""

    def __init__(self, store: BlockStore, processes: int) -> None:
        self._store = store
        self._processes = processes
        self._known: dict[str, Ceilings | str] = {}

    def of(self, variant: Variant, tell: Callable[[int], None]) -> Study | str:
        """Return what the processes saw together, or why they saw nothing."""
        seen = []
        for number in range(self._processes):
            found = self._look(variant, f"study-{variant.digest}-{number}", partial(tell, number))
            if isinstance(found, str):
                return found
            seen.append(found)
        parts = _split([each.modes for each in seen], variant)
        return Study(parts, self._roofline(seen[0], parts, variant))

    def _look(self, variant: Variant, name: str, tell: Callable[[], None]) -> StepTimes | str:
        kept = self._store.note(name, lambda content: decode(StepTimes, content))
        if kept is not None:
            return kept
        tell()
        result = run_worker(
            LookAtStep(), job=variant.job, arguments=variant.arguments, chain=variant.chain
        )
        if result.value is None:
            # Not kept: what failed, as where memory ran out, may do better next time.
            return result.reason or "nothing came back"
        self._store.write_note(name, asdict(result.value))
        return result.value

    def _roofline(
        self, seen: StepTimes, parts: TimeSplit | str, variant: Variant
    ) -> Roofline | str:
        if seen.cost is None:
            return seen.no_cost or "the step's cost cannot be told"
        if isinstance(parts, str):
            return f"the device's time is not known: {parts}"
        ceilings = self._ceilings(seen.cost.dtype, variant)
        if isinstance(ceilings, str):
            return f"the machine's ceilings are not known: {ceilings}"
        step_ms = parts.fit_ms * parts.device_share
        if not step_ms:
            return "the device's part of a step is too small to be told from the host's"
        return roofline(seen.cost, step_ms, ceilings, "the device's part of a step")

    def _ceilings(self, dtype: str, variant: Variant) -> Ceilings | str:
        if dtype not in self._known:
            # Under no chain: a transform may hide the device, or set another precision.
            task = MachineCeilings(dtype)
            result = run_worker(task, job=variant.job, arguments=variant.arguments)
            self._known[dtype] = result.value or result.reason or "nothing came back"
        return self._known[dtype]


def _split(modes: list[Modes], variant: Variant) -> TimeSplit | str:
    try:
        return split(modes, variant.chain.parts)
    except UserError as error:
        return f"{error.what} {error.received}"
