"""What a process does for the search: looks at the job, or trains it with one batch size.

Guarantees: a trial is the job's own ``fit``: traced, then at least five executions after the first,
so that the optimizer's state and the second step's memory are there, and two batches of the job's
validation. An error for want of memory is a result with its reason; a mistake in the job is an
error.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tfopt.batch_size.rebatched import (
    at_batch,
    require_made,
    require_other_batches,
    with_gpu_limit,
)
from tfopt.bench.memory import peak_host_mib, peak_of_one_gpu_mib
from tfopt.bench.tasks import Done, Progress, Task
from tfopt.data.sources import Arrays, kind_of, read_source
from tfopt.errors import UserError
from tfopt.job import Job, Transform
from tfopt.out_of_memory.explain import asked_in_words
from tfopt.out_of_memory.message import read
from tfopt.out_of_memory.watched import Watched
from tfopt.report.strict import decode
from tfopt.runner import ENDLESS, Prepared, prepared

if TYPE_CHECKING:
    from tfopt.bench.clock import WindowClock

_WINDOWS = 4
_WINDOW_MS = 100.0
_WARM_UP_S = 0.2
_VALIDATION_BATCHES = 2


@dataclass(frozen=True)
class Seen:
    """The job as it is.

    Attributes:
        examples: How many there are to train on; None where the data does not tell.
        rebatch: The data yields batches, which something has to make anew.
        gpu: Whether it trains on a GPU.
        rate: The learning rate; None under a schedule.
    """

    batch_size: int
    tuned_batch_size: int
    examples: int | None
    rebatch: bool
    replicas: int
    accumulate: int
    gpu: bool
    optimizer: str
    rate: float | None
    validation: bool


@dataclass(frozen=True)
class Look(Task[Seen]):
    """Builds and compiles the job; trains nothing."""

    kind: ClassVar[str] = "batch-look"

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        with prepared(job, endless=True) as ready:
            require_other_batches(ready.model)
            seen, told = _seen(job, ready), ready.data.told
        if job.input is not None and not isinstance(
            getattr(job.input, "__self__", None), Transform
        ):
            other = 2 * seen.batch_size
            task = at_batch(job, other, tuned=None, rebatch=False)
            with prepared(task, endless=True) as ready:
                require_made(job, other, ready.facts.batch_size)
        return Done(asdict(seen), ready.effects, told)

    def read(self, value: Mapping[str, Any]) -> Seen:
        return decode(Seen, dict(value))


@dataclass(frozen=True)
class Trained:
    """What a trial showed; ``reason`` where memory ran out, and then the figures are None."""

    reason: str | None
    host_mib: float | None
    gpu_mib: float | None
    step_ms: float | None
    examples_per_s: float | None


@dataclass(frozen=True)
class Trial(Task[Trained]):
    """Some steps with batches of one size."""

    batch: int
    tuned: int | None
    rebatch: bool
    gpu_limit_mib: int | None

    kind: ClassVar[str] = "batch-trial"

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        _end_first_where_memory_ends()
        job = at_batch(job, self.batch, tuned=self.tuned, rebatch=self.rebatch)
        if self.gpu_limit_mib is not None:
            job = with_gpu_limit(job, self.gpu_limit_mib)
        watched = Watched()
        try:
            with prepared(job, endless=True) as ready:
                watched.watch(ready.model)
                return Done(asdict(_train(ready)), ready.effects, "")
        except Exception as error:
            asked = read(error)
            if asked is None:
                raise
            phase = watched.phase or "the build"
            reason = f"{asked_in_words(asked, watched.model)}, in {phase}"
            return Done(asdict(Trained(reason, None, None, None, None)), (), "")

    def read(self, value: Mapping[str, Any]) -> Trained:
        return decode(Trained, dict(value))


def _seen(job: Job, ready: Prepared) -> Seen:
    import keras
    import tensorflow as tf

    from tfopt.transforms.accumulation import Accumulate

    optimizer = getattr(ready.model.optimizer, "inner_optimizer", ready.model.optimizer)
    schedule = isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule)
    batches = kind_of(ready.data.train) != "arrays"
    facts = ready.facts
    assert facts.batch_size is not None
    return Seen(
        batch_size=facts.batch_size,
        tuned_batch_size=facts.tuned_batch_size or facts.batch_size,
        examples=_examples(ready.data.train),
        rebatch=batches and job.input is None,
        replicas=facts.replicas,
        accumulate=next((t.steps for t in job.applied if isinstance(t, Accumulate)), 1),
        gpu=bool(tf.config.list_logical_devices("GPU")),
        optimizer=type(optimizer).__name__,
        rate=None if schedule else float(keras.ops.convert_to_numpy(optimizer.learning_rate)),
        validation=ready.data.validation is not None,
    )


def _examples(part: Any) -> int | None:
    source = read_source(part)
    return source.examples if isinstance(source, Arrays) or source.count > 0 else None


def _train(ready: Prepared) -> Trained:
    import keras

    from tfopt.bench.clock import WindowClock

    model = ready.model

    def stop_evaluating(batch: int, logs: object) -> None:
        model.stop_evaluating = batch + 1 >= _VALIDATION_BATCHES

    clock = WindowClock(
        ready.facts.steps_per_epoch,
        windows=_WINDOWS,
        window_ms=_WINDOW_MS,
        warm_up_s=_WARM_UP_S,
    )
    few = keras.callbacks.LambdaCallback(on_test_batch_end=stop_evaluating)
    ready.train(callbacks=[clock, few], epochs=ENDLESS)
    if len(clock.windows_ms) < _WINDOWS:
        raise UserError(
            "The training ended before enough of it was seen.",
            expected=f"{_WINDOWS} windows of {_WINDOW_MS:g} ms",
            received=f"{len(clock.windows_ms)} windows",
            fix="leave out callbacks that stop the training, such as EarlyStopping",
        )
    step_ms = statistics.median(clock.windows_ms)
    reasons: dict[str, str] = {}
    return Trained(
        reason=None,
        host_mib=peak_host_mib(reasons),
        gpu_mib=peak_of_one_gpu_mib(reasons),
        step_ms=round(step_ms, 4),
        examples_per_s=round(_examples_a_step(ready, clock) / step_ms * 1000, 2),
    )


def _examples_a_step(ready: Prepared, clock: WindowClock) -> float:
    """On average: the last batch of an epoch may hold fewer."""
    assert ready.facts.batch_size is not None
    if not clock.epoch_examples or ready.facts.replicas > 1:
        return ready.facts.batch_size
    return statistics.median(clock.epoch_examples)


def _end_first_where_memory_ends() -> None:
    """Where the system has to end a process, it is this one, and nobody else's work."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
