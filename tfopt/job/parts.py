"""Define what the steps of a run hand to each other: data, facts, effects, files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Effect:
    """What a transform did when its moment came: a row of the report is never silent.

    Example:
        for transform, effect in run(job, chain(Place(), Prune(0.8))).effects:
            print(transform, effect.acted, effect.note)

    Attributes:
        acted: False where it could do nothing here.
        note: What it did, or why it could not, in one sentence.
    """

    acted: bool
    note: str


@dataclass(frozen=True)
class Facts:
    """What is known of a run once its data is read.

    ``batch_size`` and ``steps_per_epoch`` are those that ``fit`` gets, which updates the weights
    once in ``accumulate`` steps.

    Example:
        def data(self, run, train):  # a method of a transform
            return train.take(run.facts.steps_per_epoch)

    Attributes:
        replicas: Over how many devices each batch is divided.
        batch_size: Examples in a batch; None where it is not known.
        tuned_batch_size: The batch for which the learning rate was chosen.
        steps_per_epoch: None where the data has no known length.
        epochs: As in ``fit``.
        seed: The job's.
        accumulate: Steps for one update of the weights.
    """

    replicas: int
    batch_size: int | None
    tuned_batch_size: int | None
    steps_per_epoch: int | None
    epochs: int
    seed: int
    accumulate: int = 1

    @property
    def update_batch(self) -> int | None:
        """Return the examples of an update of the weights."""
        return None if self.batch_size is None else self.batch_size * self.accumulate


@dataclass(frozen=True)
class Data:
    """The examples of a job.

    Each part is what ``model.fit`` takes, by Keras's own convention: a tuple of arrays holds
    single examples; a ``tf.data.Dataset``, a ``PyDataset`` or a generator function yields
    batches. Or it is a source (``tfopt.data.Parquet(...)``), or the path of one, whose columns
    ``label`` and ``features`` name.

    Example:
        Data(train="data/train.parquet", test="data/test.parquet", label="y")

    Attributes:
        train: What is trained on.
        test: What accuracy is measured on; without it none is.
        validation: What ``fit`` evaluates after every epoch.
        name: What reports call the data.
        note: What reports say of it, such as where it comes from.
        label: The column of a path that becomes y.
        features: The columns of a path that become x, as in ``tfopt.pipeline``.
    """

    train: Any = field(repr=False)
    test: Any = field(default=None, repr=False)
    validation: Any = field(default=None, repr=False)
    name: str = "data"
    note: str = ""
    label: str | None = field(default=None, repr=False)
    features: str | tuple[str, ...] | None = field(default=None, repr=False)

    @property
    def summary(self) -> str:
        """Return name and note, for a report."""
        return f"{self.name}: {self.note}" if self.note else self.name


@dataclass(frozen=True, repr=False)
class Artefact:
    """A file that a step after ``fit`` made: its content, and what was measured on it.

    Example:
        for artefact in run(job, Quantize()).artefacts:
            print(artefact.filename, artefact.metrics)

    Attributes:
        filename: The name under which ``Outcome.save`` writes it.
        content: What is in it.
        metrics: What was measured on it, by name.
    """

    filename: str
    content: bytes
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        figures = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items())
        return f"{self.filename} ({len(self.content) / 1024:,.1f} KiB{figures})"
