"""A block: one fresh process that measures the steps of one variant until there are enough.

Guarantees: the phases of a start (loading TensorFlow, building, tracing and compiling, warming
up) are told apart and never counted as steps; a window ends when Keras has read the step's
results back from the device; whatever the job does in its own callbacks is measured with it,
validation and what follows the training are not run. A block during which a GPU was throttled
is marked invalid.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from tfopt.bench.lifetime import lifetime_s
from tfopt.bench.machine import SteadyState, gpu_states, timeline, why_throttled
from tfopt.bench.memory import block_memory, gpus_in_use
from tfopt.data.caching import fills_a_cache
from tfopt.data.sources import told_with_extent
from tfopt.errors import UserError
from tfopt.job import Effect, Job, Transform, require_count
from tfopt.monitor.sampler import sampling
from tfopt.report.bench.block import Block
from tfopt.runner import ENDLESS, Prepared, prepared
from tfopt.scalars import keep_plain, within

if TYPE_CHECKING:
    from tfopt.bench.clock import WindowClock


@dataclass(frozen=True)
class Span:
    """How long a block measures: how many windows, of what length, after which warm-up."""

    windows: int = 30
    window_ms: float = 250.0
    warm_up_s: float = 1.0

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("windows", self.windows)
        _require_time("window_ms", self.window_ms, above_zero=True)
        _require_time("warm_up_s", self.warm_up_s, above_zero=False)

    @property
    def seconds(self) -> float:
        """What a block takes at least, beside its process's start."""
        return self.warm_up_s + self.windows * self.window_ms / 1000


def _require_time(name: str, value: object, *, above_zero: bool) -> None:
    if not within(value, 0, inf) or (above_zero and not value):
        raise UserError(
            f"{name} is not a time.",
            expected=f"a number {'above' if above_zero else 'of at least'} 0",
            received=repr(value),
        )


QUICK = Span(windows=20, window_ms=50.0, warm_up_s=0.5)


def measure_block(
    job: Job, span: Span, *, skip_if_idle: Transform | None = None
) -> tuple[Block | None, tuple[tuple[Transform, Effect], ...]]:
    """Trains the job under the clock until the span is measured; the model is thrown away.

    ``skip_if_idle`` is the transform that the variant adds: where it changed nothing on this
    machine, there is no block.
    """
    start_s = _load_tensorflow()
    begun = time.perf_counter()
    with prepared(job, endless=True) as ready:
        build_s = time.perf_counter() - begun
        if skip_if_idle is not None and ready.is_idle(skip_if_idle):
            return None, ready.effects
        return _block(ready, span, start_s, build_s), ready.effects


def _load_tensorflow() -> float:
    """Seconds from this process's start until TensorFlow and Keras are there."""
    import keras
    import tensorflow as tf

    # Both load most of themselves when they are first touched.
    keras.Model, tf.Variable  # noqa: B018
    return lifetime_s()


def _block(ready: Prepared, span: Span, start_s: float, build_s: float) -> Block:
    from tfopt.bench.clock import WindowClock

    used = gpus_in_use()
    with sampling(os.getpid(), clock=time.perf_counter, wanted=used) as sampler:
        steady = SteadyState(sampler)
        clock = WindowClock(
            ready.facts.steps_per_epoch,
            windows=span.windows,
            window_ms=span.window_ms,
            warm_up_s=span.warm_up_s,
            warm_up_epochs=int(fills_a_cache(ready.train_input)),
            on_steady=steady.begin,
            on_enough=steady.end,
        )
        ready.train(callbacks=[clock], epochs=ENDLESS, validate=False)
    _require_enough(clock, span)
    recording = steady.recording()
    states = gpu_states(recording)
    batch = ready.facts.batch_size
    return Block(
        start_s=round(start_s, 4),
        build_s=round(build_s, 4),
        first_step_s=round(clock.first_step_s or 0, 4),
        warm_up_s=round(clock.warm_up_s, 4),
        windows_ms=tuple(round(window, 4) for window in clock.windows_ms),
        steps=tuple(clock.steps),
        between_epochs_ms=tuple(round(gap, 4) for gap in clock.between_epochs_ms),
        batch_size=batch,
        examples_per_step=_examples_per_step(ready, clock),
        replicas=ready.facts.replicas,
        memory=block_memory(steady.allocators, sampler.recording()),
        gpus=states,
        timeline=timeline(recording),
        unavailable={} if batch else {"batch_size": "the data yields its own batches"},
        data=told_with_extent(ready.data),
        invalid=why_throttled(states),
        round=0,  # who runs several says which
    )


def _examples_per_step(ready: Prepared, clock: WindowClock) -> float | None:
    """On average: the last batch of an epoch may hold fewer. An epoch that did not end had none."""
    batch = ready.facts.batch_size
    if batch is None or not clock.epoch_examples or ready.facts.replicas > 1:
        return batch
    return round(statistics.median(clock.epoch_examples), 4)


def _require_enough(clock: WindowClock, span: Span) -> None:
    from tfopt.bench.clock import LONGEST_WARM_UP_S

    if not clock.warmed_up_whole:
        raise UserError(
            "The first epoch, which fills a cache, takes too long to be waited for.",
            expected=f"an epoch within {LONGEST_WARM_UP_S:g} s",
            received=f"{clock.warm_up_s:.0f} s without its end",
            fix="measure with less data, or with fewer steps_per_epoch",
        )
    if len(clock.windows_ms) >= span.windows:
        return
    raise UserError(
        "The training ended before enough of it was measured.",
        expected=f"{span.windows} windows of {span.window_ms:g} ms",
        received=f"{len(clock.windows_ms)} windows",
        fix="leave out callbacks that stop the training, such as EarlyStopping",
    )
