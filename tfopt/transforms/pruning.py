"""Prune: magnitude pruning while the model trains, scheduled as fractions of the training.

Guarantees: the target is reached within the training, however long it is, as long as its steps
are applied (float16 skips those that overflow); what was reached is read off the final weights.
After the training the masks are applied once more and are gone, before anything is evaluated or
made of the model: it is plain Keras, whatever weights a callback put back at the end, and its
file loads without tfopt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from tfopt.compression.choice import compile_pattern
from tfopt.compression.masks.criteria import as_criterion
from tfopt.compression.masks.patterns import as_pattern
from tfopt.compression.masks.plan import require_across
from tfopt.compression.masks.pruning import prune, pruning_report, take_masks_off
from tfopt.compression.masks.schedules import (
    ConstantSparsity,
    PolynomialSparsity,
    Schedule,
    require_sparsity,
)
from tfopt.compression.masks.sparsity import LayerSparsity
from tfopt.compression.tables import by_reason
from tfopt.errors import UserError
from tfopt.job import Artefact, Effect, Facts, Job, Trained, Transform, require_count
from tfopt.report.format import count
from tfopt.scalars import keep_plain, real

if TYPE_CHECKING:
    import keras

_UPDATES = 20


@dataclass(frozen=True, repr=False)
class Prune(Transform):
    """Keeps the smallest weights of the kernels at zero, up to a target sparsity.

    Attributes:
        sparsity: The fraction of each kernel that is zero in the end.
        schedule: "polynomial" rises to it from ``initial_sparsity`` with the third power;
            "constant" is there at once.
        begin: The fraction of the training after which masks are first chosen.
        end: The fraction after which they stay; what is left of the training recovers accuracy.
        frequency: Steps from one choice to the next; None: twenty choices in all.
        layers: A regular expression searched for in layer paths; None: every layer with a kernel,
            but for depthwise ones.
        pattern: "unstructured", or which weights are zero together: "2:4" for sparse tensor cores,
            which goes with ``Prune(0.5, schedule="constant")``, or blocks such as "1x16".
        criterion: "magnitude", "lamp" to rank across the model, "movement" for fine-tuning, or
            "random" as a control.
        across: "layer": each kernel has the sparsity; "model": all their weights together.
    """

    sparsity: float
    schedule: Literal["polynomial", "constant"] = "polynomial"
    initial_sparsity: float = 0.0
    begin: float = 0.0
    end: float = 0.75
    frequency: int | None = None
    layers: str | None = None
    pattern: str = "unstructured"
    criterion: str = "magnitude"
    across: Literal["layer", "model"] = "layer"

    changes: ClassVar[frozenset[str]] = frozenset({"attachments", "after_fit"})
    exact: ClassVar[bool] = False
    holds: ClassVar[bool] = True
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_sparsity("Prune.sparsity", self.sparsity)
        require_sparsity("Prune.initial_sparsity", self.initial_sparsity)
        if self.schedule not in ("polynomial", "constant"):
            raise UserError(
                "Prune.schedule is unknown.",
                expected='"polynomial" or "constant"',
                received=repr(self.schedule),
            )
        if self.initial_sparsity > (self.sparsity if self.schedule == "polynomial" else 0):
            raise UserError(
                "Prune.initial_sparsity does not fit its schedule.",
                expected=f"at most {self.sparsity} for a polynomial schedule, 0 for a constant one",
                received=repr(self.initial_sparsity),
            )
        for name in ("begin", "end"):
            _require_fraction(f"Prune.{name}", getattr(self, name))
        if not self.begin < self.end:
            raise UserError(
                "Prune ends before it begins.",
                expected="begin < end, as fractions of the training",
                received=f"begin={self.begin}, end={self.end}",
            )
        if self.frequency is not None:
            require_count("Prune.frequency", self.frequency)
        if self.layers is not None:
            compile_pattern("Prune.layers", self.layers)
        as_criterion(self.criterion)
        pattern = as_pattern(self.pattern)
        require_across(self.across, pattern)
        fixed = pattern.fixed()
        if fixed is not None and (self.sparsity, self.schedule) != (fixed, "constant"):
            raise UserError(
                f"Prune.pattern {self.pattern!r} says itself how much is zero.",
                expected=f'Prune({fixed:g}, schedule="constant", pattern={self.pattern!r})',
                received=f"sparsity={self.sparsity}, schedule={self.schedule!r}",
            )

    def edit(self, job: Job) -> Job:
        return replace(
            job,
            attachments=(*job.attachments, self.attach),
            after_fit=self.settling(job, self.finish),
        )

    def attach(self, model: keras.Model, facts: Facts) -> Effect:
        """Puts the masks on, scheduled for the steps this run will have."""
        steps = self._steps(facts)
        schedule = self._schedule(steps)
        prune(
            model,
            schedule,
            pattern=self.pattern,
            criterion=self.criterion,
            across=self.across,
            layers=self.layers,
        )
        rows = pruning_report(model)
        masked = [row for row in rows if row.target is not None]
        note = (
            f"{self.sparsity:.0%} of {_weights(masked)} in {count(len(masked), 'kernel')} "
            f"masked by step {schedule.end_step} of {steps}"
        )
        left = by_reason((row.path, row.remark or "") for row in rows if row.target is None)
        if left:
            note += f"; left alone: {', '.join(left)}"
        return Effect(True, note)

    def finish(self, trained: Trained) -> tuple[Artefact | None, Effect]:
        """Makes the masks' zeros final, takes the masks off, and tells what is really zero."""
        trained_rows = pruning_report(trained.model)
        take_masks_off(trained.model)
        pairs = zip(trained_rows, pruning_report(trained.model), strict=True)
        masked = [(before, after) for before, after in pairs if before.target is not None]
        if not masked:
            return None, Effect(False, "no masks were left after training")
        return None, Effect(True, self._tell_reached(masked))

    def _tell_reached(self, masked: Sequence[tuple[LayerSparsity, LayerSparsity]]) -> str:
        """The sparsity of the final model, out of each kernel before and after ``strip``."""
        rows = [after for _, after in masked]
        zeros, weights = sum(row.zeros for row in rows), sum(row.weights for row in rows)
        note = f"{zeros / weights:.1%} zeros after training"
        late = zeros - sum(before.zeros for before, _ in masked)
        if late:
            note += (
                f", {late} of them weights that were not zero when fit ended: a callback or an "
                "average had put other weights in place, and the masks were applied again"
            )
        short = self._missed(masked)
        if short:
            note += f"; the target of {self.sparsity:.0%} was missed in {', '.join(short)}"
        return note

    def _missed(self, masked: Sequence[tuple[LayerSparsity, LayerSparsity]]) -> list[str]:
        """Where fewer weights are zero than was asked for."""
        if self.across == "model":
            rows = [after for _, after in masked]
            zeros, weights = sum(row.zeros for row in rows), sum(row.weights for row in rows)
            # Each kernel keeps a weight, whatever the others have.
            return ["the model"] if zeros + len(rows) < self.sparsity * weights else []
        together = as_pattern(self.pattern).together
        return [
            f"{after.path} at {after.sparsity:.1%}"
            for before, after in masked
            if after.zeros + together < (before.target or 0) * after.weights
        ]

    def _steps(self, facts: Facts) -> int:
        if facts.steps_per_epoch is None:
            raise UserError(
                "Prune needs to know how long the training is, and this job's data does not tell.",
                expected="a job with steps_per_epoch, or data of a known length",
                received="steps_per_epoch=None",
                fix="set Job.steps_per_epoch, or use tfopt.prune(model, ...) with steps",
            )
        return facts.steps_per_epoch * facts.epochs

    def _schedule(self, steps: int) -> Schedule:
        end = max(1, round(self.end * steps))
        begin = min(round(self.begin * steps), end - 1)
        frequency = self.frequency or max(1, (end - begin) // _UPDATES)
        if self.schedule == "constant":
            return ConstantSparsity(self.sparsity, begin, end, frequency)
        return PolynomialSparsity(
            self.sparsity, begin, end, frequency, initial_sparsity=self.initial_sparsity
        )


def _weights(rows: Sequence[LayerSparsity]) -> str:
    count = sum(row.weights for row in rows)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit} weights"
    return f"{count} weights"


def _require_fraction(name: str, value: object) -> None:
    number = real(value)
    if number is None or not 0 <= number <= 1:
        raise UserError(
            f"{name} is not a fraction of the training.",
            expected="0 <= fraction <= 1",
            received=repr(value),
        )
