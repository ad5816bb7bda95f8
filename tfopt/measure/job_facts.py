"""Read off a job that is ready to train what decides which transform could help it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfopt.data.fit_data import INFINITE, Arrays, Kind, vary_in_shape
from tfopt.data.pipeline import Pipeline
from tfopt.data.stages import draws_random
from tfopt.keras_internals import compile_settings, layers_of, learning_rate_of, without_scaling
from tfopt.measure.scores import is_accuracy
from tfopt.run import Prepared
from tfopt.train.attention import serves
from tfopt.train.learning_rate import Rule

if TYPE_CHECKING:
    import keras

# By which rule the learning rate goes with the batch.
RULES: Mapping[str, Rule] = {
    "SGD": "linear",
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "Nadam", "Adagrad", "RMSprop", "Lion"), "sqrt"),
}


@dataclass(frozen=True)
class JobFacts:
    """A job as it is, on this machine.

    Attributes:
        gpus: How many TensorFlow may use.
        whole_executions: The number of steps that a ``steps_per_execution`` must divide; None
            where it need not.
        jit_compile: Whether the step is compiled by XLA.
        half: The half precision to try here, where the model is all float32.
        attention: Whether cuDNN's fused kernels serve attention of the model, in half precision.
        source: What the training data is; ``endless``: it has no end.
        augmented: Its stages draw random numbers, which a cache behind them would freeze.
        examples: How many there are to train on; None where the data does not say.
        epoch_examples: Those of an epoch; None without a length.
        rebatch: The data yields batches, which something has to make anew.
        rate: The learning rate; None under a schedule.
        tested: Whether there is a test accuracy to confirm the quality by.
        varies: Whether batches differ in shape, for each of which XLA compiles the step.
    """

    replicas: int
    gpus: int
    whole_executions: int | None
    jit_compile: bool
    eager: bool
    half: str | None
    attention: bool
    source: Kind
    endless: bool
    augmented: bool
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
    varies: bool = False

    @property
    def rule(self) -> Rule | None:
        """Return how the learning rate scales with the batch; None if that is unknown."""
        return None if self.rate is None else RULES.get(self.optimizer)

    @property
    def training_examples(self) -> int:
        """Return how many examples the whole training has; 0 where that is unknown."""
        return (self.epoch_examples or 0) * self.epochs

    @property
    def generated(self) -> int | None:
        """Return how many examples a generator yields, which a pipeline needs."""
        known = self.source == "generator" and self.whole_executions is None
        return self.epoch_examples if known else None


def facts_of(ready: Prepared) -> JobFacts:
    """Return the facts of a job that is ready to train; nothing is trained."""
    import keras
    import tensorflow as tf

    job, facts, data, model = ready.job, ready.facts, ready.data, ready.model
    chain = ready.run.chain
    train, optimizer = ready.examples["train"], without_scaling(model.optimizer)
    schedule = keras.optimizers.schedules.LearningRateSchedule
    scheduled = isinstance(learning_rate_of(optimizer), schedule)
    varies = vary_in_shape(ready.train_input)
    assert facts.update_batch is not None
    examples = None
    if train.kind != "generator":
        source = train.read()
        examples = source.examples if isinstance(source, Arrays) or source.count > 0 else None
    return JobFacts(
        replicas=facts.replicas,
        gpus=len(tf.config.list_logical_devices("GPU")),
        whole_executions=job.steps_per_epoch,
        jit_compile=bool(model.jit_compile),
        eager=bool(model.run_eagerly),
        half=_half(model, facts.replicas),
        attention=serves(model) and not varies,  # its lengths must be known
        source=train.kind,
        endless=train.count == INFINITE,
        augmented=draws_random(train.given),
        batch_size=facts.update_batch,
        tuned_batch_size=facts.tuned_batch_size or facts.update_batch,
        steps_per_epoch=facts.steps_per_epoch,
        epochs=facts.epochs,
        examples=examples,
        epoch_examples=ready.epoch_examples,
        rebatch=train.keeps_batches and not any(isinstance(t, Pipeline) for t in chain.parts),
        accumulate=facts.accumulate,
        optimizer=type(optimizer).__name__,
        rate=None if scheduled else float(optimizer.learning_rate),
        tested=data.test is not None and _has_accuracy(model),
        varies=varies,
    )


def _half(model: keras.Model, replicas: int) -> str | None:
    """Return the half precision to try; None where the model has one, or the machine none."""
    from tfopt.train.precision import gpu_capabilities, half_precision

    if {layer.compute_dtype for layer in layers_of(model)} & {"float16", "bfloat16"}:
        return None
    chosen = half_precision()
    if chosen == "mixed_float16" and replicas > 1:
        # float16 needs loss scaling, which several replicas break; Ampere and newer have the other.
        return "mixed_bfloat16" if min(gpu_capabilities()) >= (8, 0) else None
    return chosen


def _has_accuracy(model: Any) -> bool:
    """Return whether a metric of compile() is an accuracy, by its name."""
    import keras

    given = keras.tree.flatten(compile_settings(model).get("metrics"))
    names = (getattr(metric, name, metric) for metric in given for name in ("name", "__name__"))
    return any(is_accuracy(name) for name in names if isinstance(name, str))
