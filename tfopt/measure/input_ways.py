"""Train a job in turns in ways that tell what its input costs.

As it is; on a batch that is there already; the pipeline drained up to one of its stages, with
nothing trained; and under a change to the input.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tfopt.data.feeding import lasting
from tfopt.data.fit_data import Batches, examples_of
from tfopt.data.flow import untuned
from tfopt.data.pipeline import Pipeline
from tfopt.data.stage_changes import changed
from tfopt.data.stages import Stage, stages_of
from tfopt.errors import UserError
from tfopt.measure.turn_taking import FILLS_S, Way, fill
from tfopt.run import ENDLESS, Prepared


@dataclass(frozen=True)
class AsItIs(Way):
    """``fit`` on the job's own input, whose cache is full."""

    name: ClassVar[str] = "the job as it is"

    def ready(self, ready: Prepared) -> Prepared:
        fill(ready.train_input, ready.facts.steps_per_epoch)
        return ready


@dataclass(frozen=True)
class Resident(Way):
    """The training step on one batch, which is where the step computes."""

    name: ClassVar[str] = "its step alone"

    def ready(self, ready: Prepared) -> Prepared:
        import tensorflow as tf

        model, batch = ready.model, first_batch(ready)
        if ready.facts.replicas == 1:
            flat = tf.nest.flatten(batch, expand_composites=True)
            held = [tf.Variable(leaf, trainable=False) for leaf in flat]
            step = model.train_step

            def train_step(data: Any) -> Any:
                values = [variable.value() for variable in held]
                return step(tf.nest.pack_sequence_as(batch, values, expand_composites=True))

            model.train_step = train_step
        return with_stand_in(ready)


@dataclass(frozen=True)
class Drained(Way):
    """The input up to a stage, a batch of examples a step; nothing is trained."""

    stage: int
    words: str
    python: bool

    @property
    def name(self) -> str:
        return f"its input up to {self.words}"

    def ready(self, ready: Prepared) -> Prepared:
        import tensorflow as tf

        stage, model, steps = stages_in(ready)[self.stage], ready.model, ready.facts.steps_per_epoch
        own = None
        if stage.kind != "pydataset":
            # As many elements as make a batch; without a step for each of them: sharding passes
            # over the others in C++.
            elements = max(round((ready.facts.batch_size or 1) / stage.examples), 1)
            fill(stage.dataset, steps and steps * elements)
            own = iter(stage.dataset.repeat().shard(elements, 0))

        @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]
        def take(iterator: Any) -> None:
            iterator.get_next()

        model.train_function = lambda given: take(given if own is None else own) or {}
        model.steps_per_execution = 1
        model.get_metrics_result = dict  # those of a model that never trained cannot be read
        ready.run.job = ready.job.with_(callbacks=())
        return ready if own is None else with_stand_in(ready)

    def processor_s(self) -> float:
        """Return the seconds in which this process computed, or would have on a free core."""
        waited_ns = 0
        for task in Path("/proc/self/task").glob("*/schedstat"):
            with suppress(OSError, ValueError, IndexError):  # a thread that has ended meanwhile
                waited_ns += int(task.read_text().split()[1])
        return time.process_time() + waited_ns / 1e9


@dataclass(frozen=True)
class Changed(Way):
    """``fit`` under changes to the job's own dataset, or on its data as a ``pipeline`` makes it."""

    changes: tuple[str, ...]
    pipeline: Pipeline | None = None

    @property
    def name(self) -> str:
        return " and ".join(self.changes)

    def ready(self, ready: Prepared) -> Prepared:
        if self.pipeline is None:
            made = changed(ready.data.train, self.changes, ready.facts.batch_size or 1)
            fill(made, None)
            return with_input(ready, made)
        facts = replace(ready.facts, steps_per_epoch=ready.job.steps_per_epoch)
        made, _ = self.pipeline.read(ready.data.train, facts)
        if not fill(made, ready.facts.steps_per_epoch):
            raise UserError(f"A cache was not full after {FILLS_S:g} s.")
        return replace(ready, train_input=made)


def stages_in(ready: Prepared) -> tuple[Stage, ...]:
    """Return the stages of a job's input; none of arrays."""
    kind, batch = examples_of(ready.train_input).kind, ready.facts.batch_size
    if kind == "dataset":
        return stages_of(ready.train_input, batch)
    if kind == "pydataset":
        return (Stage(kind, kind, ready.train_input, python=True, examples=batch or 1),)
    return ()


def first_batch(ready: Prepared) -> Any:
    """Return the first batch as ``fit`` hands it to a step, of all replicas."""
    facts, train = ready.facts, examples_of(ready.train_input)
    endless = lasting(train, steps=ENDLESS, epochs=ENDLESS, batch=facts.batch_size, seed=facts.seed)
    source = examples_of(endless).read()
    assert isinstance(source, Batches)
    return source.first


def with_stand_in(ready: Prepared) -> Prepared:
    """Return the job with an endless input for Keras's loop to hold, which no step looks at."""
    import tensorflow as tf

    # Under a strategy Keras builds metrics by what it is handed.
    handed = first_batch(ready) if tf.distribute.has_strategy() else 0
    return with_input(ready, untuned(tf.data.Dataset.from_tensors(handed).repeat()))


def with_input(ready: Prepared, dataset: Any) -> Prepared:
    """Return the job with another input, of unknown length."""
    ready.run.job = ready.job.with_(steps_per_epoch=None)
    ready.run.facts = replace(ready.facts, steps_per_epoch=None)
    return replace(ready, train_input=dataset)
