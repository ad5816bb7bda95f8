"""Look at a job as it is, before a search changes anything of it; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tfopt.data.feeding import steps_in
from tfopt.data.fit_data import Arrays, describe_data, read_source
from tfopt.job.job import Job, Transform
from tfopt.measure.one_variant import is_accuracy
from tfopt.measure.rebatched import at_batch, require_made, require_other_batches
from tfopt.measure.tasks import Done, Progress, Task
from tfopt.measure.turns import Circumstances, circumstances_of
from tfopt.run import Prepared, prepared
from tfopt.train.learning_rate import Rule

# By which rule the learning rate goes with the batch.
RULES: Mapping[str, Rule] = {
    "SGD": "linear",
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "Nadam", "Adagrad", "RMSprop", "Lion"), "sqrt"),
}


@dataclass(frozen=True)
class JobFacts(Circumstances):
    """The job as it is, which decides what can be tried.

    Attributes:
        examples: How many there are to train on; None where the data does not say.
        epoch_examples: Those of an epoch; None without a length.
        rebatch: The data yields batches, which something has to make anew.
        rate: The learning rate; None under a schedule.
        tested: Whether there is a test accuracy to confirm the quality by.
    """

    batch_size: int
    tuned_batch_size: int
    steps_per_epoch: int | None
    epochs: int
    examples: int | None
    epoch_examples: int | None
    rebatch: bool
    accumulate: int
    optimizer: str
    rate: float | None
    tested: bool
    data: str

    @property
    def rule(self) -> Rule | None:
        """Return how its rate goes with the batch; None where that is not known."""
        return None if self.rate is None else RULES.get(self.optimizer)


@dataclass(frozen=True)
class LookAtJob(Task[JobFacts]):
    """Build and compile the job; with ``other_batches``, refuse one that takes its own alone."""

    other_batches: bool = False

    kind: ClassVar[str] = "job-look"
    gives: ClassVar[type[Any]] = JobFacts

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        with prepared(job, endless=True) as ready:
            if self.other_batches:
                require_other_batches(ready.model)
            found, effects, data = facts_of(ready), ready.effects, ready.data.summary
        if self.other_batches and found.own_input:
            other = 2 * found.batch_size
            with prepared(at_batch(job, other, tuned=None, rebatch=False), endless=True) as ready:
                require_made(job, other, ready.facts.batch_size)
        return Done(asdict(found), effects, data)


def facts_of(ready: Prepared) -> JobFacts:
    """Read them off a job that is ready to train."""
    from tfopt.train.accumulate import Accumulate

    job, facts, data = ready.job, ready.facts, ready.data
    around, (optimizer, rate) = circumstances_of(ready), _optimizer_of(ready.model)
    assert facts.batch_size is not None
    return JobFacts(
        **vars(around),
        batch_size=facts.batch_size,
        tuned_batch_size=facts.tuned_batch_size or facts.batch_size,
        steps_per_epoch=facts.steps_per_epoch,
        epochs=facts.epochs,
        examples=None if around.source == "generator" else _examples(data.train),
        epoch_examples=_epoch_examples(ready, facts.batch_size),
        rebatch=around.source not in ("arrays", "source") and job.input is None,
        accumulate=next((t.steps for t in job.applied if isinstance(t, Accumulate)), 1),
        optimizer=optimizer,
        rate=rate,
        tested=data.test is not None and _has_accuracy(ready.model),
        data=describe_data(data),
    )


def _optimizer_of(model: Any) -> tuple[str, float | None]:
    """Return the name of a model's optimizer, and its learning rate; None under a schedule."""
    import keras

    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    schedule = keras.optimizers.schedules.LearningRateSchedule
    scheduled = isinstance(getattr(optimizer, "_learning_rate", None), schedule)
    return type(optimizer).__name__, None if scheduled else float(optimizer.learning_rate)


def _examples(part: Any) -> int | None:
    source = read_source(part)
    return source.examples if isinstance(source, Arrays) or source.count > 0 else None


def _epoch_examples(ready: Prepared, batch: int) -> int | None:
    """Return those of an epoch; of arrays exactly, whose last batch may be smaller."""
    if ready.facts.steps_per_epoch is None:
        return None
    most, alone = ready.facts.steps_per_epoch * batch, steps_in(ready.data.train, 1)
    return alone if alone is not None and most - alone < batch else most


def _has_accuracy(model: Any) -> bool:
    """Return whether a metric of compile() is an accuracy, by its name."""
    import keras

    compiled = getattr(model, "_compile_metrics", None)
    given = [] if compiled is None else keras.tree.flatten(compiled._user_metrics)
    names = [each if isinstance(each, str) else getattr(each, "name", None) for each in given]
    names += [getattr(each, "__name__", None) for each in given]
    return any(is_accuracy(name) for name in names if isinstance(name, str))
