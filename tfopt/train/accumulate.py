"""Update the weights once in several steps, with the memory of one step.

Keras's optimizers accumulate gradients themselves; this file adds learning-rate schedules that
count updates, and errors for what would differ from a whole batch. It imports Keras at its top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras

from tfopt.errors import UserError, keep_plain, require_count
from tfopt.job.model_checks import require_compiled
from tfopt.job.transform import Chain, Run, Transform
from tfopt.keras_internals import add_gradient_accumulators, learning_rate_of, without_scaling

schedules = keras.optimizers.schedules


@keras.saving.register_keras_serializable(package="tfopt")
class UpdateSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule that counts updates, where Keras counts steps of ``fit``.

    A model saved with it loads after ``tfopt.train.accumulate`` was imported.
    """

    def __init__(self, schedule: Any, steps: int) -> None:
        self.schedule = schedules.deserialize(schedule) if isinstance(schedule, dict) else schedule
        self.steps = steps

    def __call__(self, step: Any) -> Any:
        return self.schedule(keras.ops.floor_divide(step, self.steps))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {"schedule": schedules.serialize(self.schedule), "steps": self.steps}


def accumulate(model: keras.Model, steps: int) -> keras.Model:
    """Make a compiled model update its weights once in ``steps`` steps, in place, and return it.

    Give ``fit`` batches that many times smaller: if 8 examples fit into memory,
    ``accumulate(model, 4)`` and ``fit(..., batch_size=8)`` train what a batch of 32 would. It is
    Keras's ``gradient_accumulation_steps``, with a learning-rate schedule that counts updates.

    The weights are those of the whole batch if its loss is a mean over its examples and all
    micro-batches have one size. Otherwise micro-batches count the same, whatever their masks and
    sample weights, and the surplus steps of an epoch go into the first update of the next one.
    BatchNormalization and Dropout see micro-batches. An ``Embedding`` gets the sum of a token's
    gradients, of which Keras otherwise squares each by itself (Adam, RMSprop). Step counts, such as
    ``steps_per_epoch`` and the schedule of ``prune``, count micro-batches.

    Args:
        model: A compiled Keras 3 model.
        steps: Micro-batches per update, at least 2. Compile the model anew to undo it.

    Raises:
        UserError: The model is not compiled, ``steps`` is below 2, it has optimizers of its own, as
            a GAN, or the optimizer averages its weights (``use_ema``) or accumulates already.

    Example:
        tfopt.accumulate(model, 4)
        model.fit(x, y, batch_size=8)
    """
    require_count("accumulate(steps)", steps, minimum=2)
    optimizer = _optimizer(model)
    schedule = learning_rate_of(optimizer)
    if isinstance(schedule, schedules.LearningRateSchedule):
        optimizer.learning_rate = UpdateSchedule(schedule, steps)
    add_gradient_accumulators(optimizer, steps)
    model.train_function = None
    return model


def micro_batches(chain: Chain) -> int:
    """Return the number of micro-batches per batch in a chain."""
    return next((t.steps for t in chain.parts if isinstance(t, Accumulate)), 1)


def micro_batch_size(batch_size: int, steps: int) -> int:
    """Return the examples of a micro-batch; raise if ``steps`` does not divide the batch."""
    if batch_size % steps:
        raise UserError(
            f"A batch of {batch_size} cannot be split into {steps} micro-batches of one size.",
            expected=f"Accumulate(steps) that divides {batch_size}",
            received=f"steps={steps}",
            fix=f"train batches of {-(-batch_size // steps) * steps}, or use another steps",
        )
    return batch_size // steps


def _optimizer(model: Any) -> Any:
    """Return the optimizer of a model; raise if it cannot accumulate."""
    require_compiled(model, "accumulate")
    optimizer = without_scaling(model.optimizer)
    kept = {k: v for k, v in vars(model).items() if isinstance(v, keras.optimizers.Optimizer)}
    if own := [k for k, v in kept.items() if v is not model.optimizer and v is not optimizer]:
        raise UserError(
            f"{type(model).__name__} has optimizers of its own, which would not accumulate.",
            expected="a model that trains with the optimizer of keras.Model.compile() alone",
            received=", ".join(own),
            fix="create them with gradient_accumulation_steps=...",
        )
    if optimizer.gradient_accumulation_steps:
        raise UserError(
            "The optimizer accumulates gradients already.",
            expected="an optimizer without gradient_accumulation_steps",
            received=f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}",
            fix="compile the model anew, or leave one of the two out",
        )
    if optimizer.use_ema:
        raise UserError(
            "use_ema would average the weights after every micro-batch.",
            expected="an optimizer without use_ema",
            received=f"{type(optimizer).__name__}(use_ema=True)",
            fix="leave use_ema out, or train whole batches",
        )
    return optimizer


@dataclass(frozen=True, repr=False)
class Accumulate(Transform):
    """Train each batch in ``steps`` micro-batches, which need less memory.

    Example:
        outcome = run(job, Accumulate(4))  # a batch of 32 in micro-batches of 8

    Attributes:
        steps: Micro-batches per update, at least 2; a divisor of the batch size.
    """

    steps: int

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("Accumulate.steps", self.steps, minimum=2)

    def attach(self, run: Run, model: Any) -> None:
        """Note the micro-batches; ``run`` sets the batch size and the optimizer."""
        facts = run.facts
        note = f"batches of {facts.update_batch} in {self.steps} micro-batches"
        if facts.batch_size is not None:
            note += f" of {facts.batch_size}"
        over = (facts.steps_per_epoch or 0) % self.steps
        if over:
            note += f"; the last {over} of an epoch go into the first update of the next one"
        run.note(note)
