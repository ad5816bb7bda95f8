"""The task of a search: train the job with one batch size.

A trial is the job's own ``fit`` for at least five executions after the first, and two batches of
its validation. An error for want of memory is a result with its reason.
"""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import psutil

from tfopt.job.job import Job, Transform
from tfopt.measure.blocks import ended_early, examples_per_step
from tfopt.measure.memory import peak_host_mib, peak_of_one_gpu_mib
from tfopt.measure.rebatched import at_batch, with_gpu_limit
from tfopt.measure.tasks import Done, Progress, Task
from tfopt.run import ENDLESS, Prepared, prepared
from tfopt.train.memory_message import asked_in_words, read
from tfopt.train.out_of_memory import Watched

_WINDOWS = 4
_WINDOW_MS = 100.0
_WARM_UP_S = 0.2
_VALIDATION_BATCHES = 2
Kind = Literal["trained", "memory", "time", "crash", "error"]


@dataclass(frozen=True)
class Attempt:
    """One process with one batch size; ``reason`` says why it failed.

    ``peak_mib`` is of the fullest GPU's allocator, or resident in the process without a GPU.
    """

    batch: int
    kind: Kind
    reason: str | None = None
    peak_mib: float | None = None
    step_ms: float | None = None
    examples_per_s: float | None = None

    @property
    def passed(self) -> bool:
        return self.kind == "trained"


@dataclass(frozen=True)
class Trial(Task[Attempt]):
    """Some steps with batches of one size."""

    batch: int
    tuned: int | None
    rebatch: bool
    gpu_limit_mib: int | None

    kind: ClassVar[str] = "batch-trial"
    gives: ClassVar[type[Any]] = Attempt

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        _end_first_where_memory_ends()
        job = at_batch(job, self.batch, tuned=self.tuned, rebatch=self.rebatch)
        if self.gpu_limit_mib is not None:
            job = with_gpu_limit(job, self.gpu_limit_mib)
        watched = Watched()
        try:
            with prepared(job, endless=True) as ready:
                watched.watch(ready.model)
                return Done(asdict(_train(ready, self.batch)), ready.effects, "")
        except Exception as error:
            asked = read(error)
            if asked is None:
                raise
            phase = watched.phase or "the build"
            reason = f"{asked_in_words(asked, watched.model)}, in {phase}"
            return Done(asdict(Attempt(self.batch, "memory", reason)), (), "")


def _train(ready: Prepared, batch: int) -> Attempt:
    import keras
    import tensorflow as tf

    from tfopt.measure.clock import WindowClock

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
        raise ended_early(_WINDOWS, len(clock.windows_ms))
    step_ms = statistics.median(clock.windows_ms)
    gpus = tf.config.list_logical_devices("GPU")
    return Attempt(
        batch,
        "trained",
        peak_mib=peak_of_one_gpu_mib({}) if gpus else peak_host_mib({}),
        step_ms=round(step_ms, 4),
        examples_per_s=round((examples_per_step(ready, clock) or batch) / step_ms * 1000, 2),
    )


def _end_first_where_memory_ends() -> None:
    """Let the system end this process first, and nobody else's work, where memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


# What is looked at while a trial runs: the memory it holds, and the time it takes.
#
# Resident memory is watched: TensorFlow reserves far more addresses than it uses, so that ``ulimit
# -v`` would end it long before. What is taken and given back between two looks is seen in the
# kernel's own peak, afterwards.

_MIB = 1024**2


class Limits:
    """Limits on memory and time, checked with the process's id; a text ends the process."""

    def __init__(self, limit_mib: float | None, seconds: float) -> None:
        self.ended: Literal["memory", "time"] | None = None
        self._limit_mib = limit_mib
        self._seconds = seconds
        self._begun = time.monotonic()

    def __call__(self, pid: int) -> str | None:
        if time.monotonic() - self._begun > self._seconds:
            self.ended = "time"
            return f"not done within {self._seconds:g} s"
        held = resident_mib(pid)
        if self._limit_mib is not None and held > self._limit_mib:
            self.ended = "memory"
            return above_limit(held, self._limit_mib)
        return None


def above_limit(held_mib: float, limit_mib: float) -> str:
    """Return the reason of a trial that took too much."""
    return f"the process held {held_mib:,.0f} MiB, more than the {limit_mib:,.0f} MiB it may"


def resident_mib(pid: int) -> float:
    """Return the memory that a process holds; 0 where it is gone."""
    with suppress(psutil.Error):
        return float(psutil.Process(pid).memory_info().rss) / _MIB
    return 0.0
