"""Cluster: few values for each kernel, formed in the middle of the training and trained on.

Guarantees: clusters are formed within the training, however long it is, as long as its steps are
applied (float16 skips those that overflow); how many values there are is read off the final
weights. After the training the clusters are gone, before anything is evaluated or made of the
model: it is plain Keras, whatever weights a callback put back at the end, and its file loads
without tfopt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from tfopt.compression.choice import compile_pattern
from tfopt.compression.clusters.clustering import (
    cluster,
    clustering_report,
    require_clusters,
    take_clusters_off,
)
from tfopt.compression.clusters.codebook import Initial, require_initial
from tfopt.compression.held.applying import settle
from tfopt.compression.tables import by_reason
from tfopt.errors import UserError
from tfopt.job import Artefact, Effect, Facts, Job, Trained, Transform, require_switch
from tfopt.report.format import count
from tfopt.scalars import keep_plain, within

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True, repr=False)
class Cluster(Transform):
    """Gives each kernel so many values at most, by k-means, and trains the values on.

    Attributes:
        clusters: The most values that a kernel has in the end: with 16, a weight takes 4 bits.
        begin: The fraction of the training after which the clusters are formed; 0 for a job that
            begins with trained weights.
        initial: "kmeans++", "linear", "density" or "random".
        per_channel: So many values for each output channel instead.
        layers: A regular expression searched for in layer paths; None: every layer with a kernel,
            but for depthwise ones.
    """

    clusters: int = 16
    begin: float = 0.5
    initial: Initial = "kmeans++"
    per_channel: bool = False
    layers: str | None = None

    changes: ClassVar[frozenset[str]] = frozenset({"attachments", "after_fit"})
    exact: ClassVar[bool] = False
    holds: ClassVar[bool] = True
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_clusters("Cluster.clusters", self.clusters)
        require_initial(self.initial)
        require_switch("Cluster.per_channel", self.per_channel)
        if self.layers is not None:
            compile_pattern("Cluster.layers", self.layers)
        if not within(self.begin, 0, 1):
            raise UserError(
                "Cluster.begin is not a fraction of the training that leaves something of it.",
                expected="0 <= begin < 1",
                received=repr(self.begin),
            )

    def edit(self, job: Job) -> Job:
        return replace(
            job,
            attachments=(*job.attachments, self.attach),
            after_fit=self.settling(job, self.finish),
        )

    def attach(self, model: keras.Model, facts: Facts) -> Effect:
        """Puts the clusters on, to be formed at a step that this run will have."""
        steps = self._steps(facts)
        first = min(round(self.begin * steps) + 1, steps)
        cluster(
            model,
            self.clusters,
            initial=self.initial,
            per_channel=self.per_channel,
            layers=self.layers,
            begin_step=first,
        )
        rows = clustering_report(model)
        held = [row for row in rows if row.clusters is not None]
        each = "channel" if self.per_channel else "kernel"
        note = (
            f"at most {self.clusters} values for each {each} of {count(len(held), 'kernel')} "
            f"from step {first} of {steps}"
        )
        left = by_reason((row.path, row.remark or "") for row in rows if row.clusters is None)
        if left:
            note += f"; left alone: {', '.join(left)}"
        return Effect(True, note)

    def finish(self, trained: Trained) -> tuple[Artefact | None, Effect]:
        """Makes the values final, takes the clusters off, and tells how many values there are."""
        settle(trained.model)
        held = [row for row in clustering_report(trained.model) if row.clusters is not None]
        # Only these: another transform's finish may still need what it holds.
        take_clusters_off(trained.model)
        if not held:
            return None, Effect(False, "no clusters were left after training")
        most = max(row.values for row in held)
        if most > self.clusters:
            return None, Effect(False, "the training ended before its clusters were formed")
        return None, Effect(True, f"at most {most} values after training")

    def _steps(self, facts: Facts) -> int:
        if facts.steps_per_epoch is None:
            raise UserError(
                "Cluster needs to know how long the training is, and this job's data does not "
                "tell.",
                expected="a job with steps_per_epoch, or data of a known length",
                received="steps_per_epoch=None",
                fix="set Job.steps_per_epoch, or use tfopt.cluster(model, ...) with begin_step",
            )
        return facts.steps_per_epoch * facts.epochs
