"""Define what the steps of a run exchange: data, facts, effects, files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Effect:
    """What a transform did in a run, in words: every row of a report has one.

    Example:
        for transform, effect in run(job, chain(Place(), Prune(0.8))).effects:
            print(transform, effect.acted, effect.note)

    Attributes:
        acted: Whether it changed anything here.
        note: The change, or why there is none, in one sentence.
    """

    acted: bool
    note: str


@dataclass(frozen=True)
class Facts:
    """The settings of a run, known once its data is read.

    ``batch_size`` and ``steps_per_epoch`` are those of ``fit``, which updates the weights once in
    ``accumulate`` steps.

    Example:
        def data(self, run, train):  # a method of a transform
            return train.take(run.facts.steps_per_epoch)

    Attributes:
        replicas: The number of devices that share a batch.
        batch_size: Examples in a batch of ``fit``; None if unknown.
        tuned_batch_size: The batch for which the learning rate was chosen.
        steps_per_epoch: Steps of ``fit`` in an epoch; None if unknown.
        epochs: As in ``fit``.
        seed: The job's seed.
        accumulate: Steps per update of the weights.
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
        """Return the examples per update of the weights."""
        return None if self.batch_size is None else self.batch_size * self.accumulate


@dataclass(frozen=True)
class Data:
    """The examples of a job.

    A part is what ``model.fit`` takes: a tuple of arrays holds single examples; a
    ``tf.data.Dataset``, a ``PyDataset`` or a generator function yields batches. Or it is a source
    (``tfopt.data.Parquet(...)``) or its path, with the columns in ``label`` and ``features``.

    Example:
        Data(train="data/train.parquet", test="data/test.parquet", label="y")

    Attributes:
        train: The training part.
        test: The part for the evaluation, or None.
        validation: The part that ``fit`` evaluates after every epoch, or None.
        name: The name in reports.
        note: A remark for reports, such as the source.
        label: The column for y, of a source.
        features: The columns for x, of a source, as in ``tfopt.pipeline``.
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
    """A file written after ``fit``: its content and its metrics.

    Example:
        for artefact in run(job, Quantize()).artefacts:
            print(artefact.filename, artefact.metrics)

    Attributes:
        filename: Its name in ``Outcome.save``.
        content: Its bytes.
        metrics: Measurements on it, by name.
    """

    filename: str
    content: bytes
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        figures = "".join(f", {name} {value:.4g}" for name, value in self.metrics.items())
        return f"{self.filename} ({len(self.content) / 1024:,.1f} KiB{figures})"
