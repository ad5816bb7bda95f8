"""Accumulate: a batch trained in micro-batches, with the weights that the whole batch trains.

Guarantees: gradients are those of the whole batch but for rounding, whatever the loss leaves out or
weighs: micro-batches may be uneven, masked or weighted. Layers that look at a batch as a whole
(BatchNormalization) look at a micro-batch, and Dropout draws for each anew. Files of the model have
no trace of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tfopt.accumulation.step import Accumulated, accumulated, refuse_optimizer
from tfopt.errors import UserError
from tfopt.job import Effect, Facts, Job, Transform, require_count
from tfopt.rebuild import require_built_keras3, require_keras3
from tfopt.scalars import keep_plain

if TYPE_CHECKING:
    import keras


def accumulate(model: keras.Model, steps: int) -> keras.Model:
    """Lets a model train its batches in ``steps`` micro-batches, in place, and returns that model.

    ``fit`` is given the whole batch, and all that counts steps (schedules, averages,
    ``iterations``, masks of ``prune``, callbacks) counts batches; only the memory for activations
    is that of a micro-batch. Where batches of 8 fit into memory, ``accumulate(model, 4)`` and
    ``fit(..., batch_size=32)`` train what a batch of 32 would. A last batch that is smaller is cut
    into smaller micro-batches: no gradient is left over.

    What differs from the whole batch: BatchNormalization normalizes each micro-batch by itself and
    moves its statistics that often; Dropout draws for each micro-batch; what ``add_loss`` adds is
    taken as a mean over examples, or of none.

    Args:
        model: A built Keras 3 model with Keras's own ``train_step`` and ``compute_loss``, compiled
            or not. Not an optimizer: it does not see what a loss is a mean of.
        steps: Micro-batches a batch; 1 takes it off. A model that is loaded or cloned is a plain
            one.
    """
    require_count("accumulate(steps)", steps)
    _require_model(model)
    before = accumulated(model)
    if before is not None:
        before.take_off()
    if steps > 1:
        Accumulated(model, steps).put_on()
    return model


@dataclass(frozen=True, repr=False)
class Accumulate(Transform):
    """Trains each batch in so many micro-batches, which need less memory."""

    steps: int

    changes: ClassVar[frozenset[str]] = frozenset({"attachments"})
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("Accumulate.steps", self.steps)

    def edit(self, job: Job) -> Job:
        return replace(job, attachments=(*job.attachments, self.attach))

    def attach(self, model: Any, facts: Facts) -> Effect:
        """Puts it on the final model."""
        if self.steps == 1:
            return Effect(False, "one micro-batch a batch: the plain step")
        accumulate(model, self.steps)
        if facts.batch_size is None:
            return Effect(True, f"{self.steps} micro-batches of each batch")
        each = facts.batch_size // facts.replicas
        micro = -(-each // self.steps)
        where = f" on each of {facts.replicas} replicas" if facts.replicas > 1 else ""
        return Effect(
            True,
            f"batches of {facts.batch_size} in {-(-each // micro)} micro-batches of {micro}"
            f"{' at most' if each % micro else ''}{where}",
        )


def _require_model(model: Any) -> None:
    import keras

    if isinstance(model, keras.optimizers.Optimizer):
        raise UserError(
            "accumulate() needs the model.",
            expected="a keras.Model, whose losses tell what each is a mean of",
            received=type(model).__name__,
            fix="tfopt.accumulate(model, steps)",
        )
    require_keras3(model)
    for name in ("train_step", "compute_loss"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise UserError(
                f"The {name} of {type(model).__name__} cannot be cut into micro-batches.",
                expected=f"Keras's own {name}, whose losses can be weighed",
                received=f"{type(model).__name__}.{name}",
                fix="accumulate in your own step, or move what is special into a keras.losses.Loss",
            )
    require_built_keras3(model)
    for variable in model.trainable_variables:
        if variable.overwrite_with_gradient:
            raise UserError(
                f"{variable.path} is overwritten by its gradient, which cannot be summed.",
                expected="weights that are trained",
                received="a float8 model",
                fix="train float8 without accumulate()",
            )
    if getattr(model, "compiled", False):
        refuse_optimizer(model.optimizer)
