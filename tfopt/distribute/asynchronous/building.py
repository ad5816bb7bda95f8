"""Build what the workers train: all variables of a model, and each worker's share of examples.

Each worker repeats its share; an epoch has as many steps as all shares have batches, and any worker
takes the next step. So an example is seen about once an epoch, not exactly once.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfopt.data.stages import reads_python
from tfopt.distribute.model_parts import optimizers_of, require_built_parts
from tfopt.errors import UserError
from tfopt.keras_internals import without_scaling
from tfopt.resume.variables import build_all

_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def check_model(model: Any) -> None:
    """Refuse models that cannot be trained asynchronously."""
    if not isinstance(model, keras.Model) or not model.compiled or model.optimizer is None:
        raise UserError(
            "build() returned no compiled Keras 3 model.",
            expected="model.compile(optimizer=…, loss=…) inside build",
            received=f"{type(model).__module__}.{type(model).__name__}",
        )
    for reason in _reasons(model):
        raise UserError(
            f"{model.name} cannot be trained asynchronously: {reason}.",
            expected="a model whose every step is one gradient, applied immediately",
            fix="compile it without this setting",
        )


def _reasons(model: Any) -> Iterable[str]:
    if model.run_eagerly:
        yield "run_eagerly=True needs Python, and a worker has only the step's graph"
    if model.steps_per_execution != 1:
        yield f"steps_per_execution={model.steps_per_execution} is not supported"
    for name, optimizer in optimizers_of(model).items():
        if without_scaling(optimizer) is not optimizer:
            yield f"workers cannot share a loss scale: use mixed_bfloat16 ({name})"
        if getattr(optimizer, "gradient_accumulation_steps", None):
            yield f"workers would accumulate into the gradients of others ({name})"
        if getattr(optimizer, "use_ema", False) and optimizer.ema_overwrite_frequency:
            yield f"ema_overwrite_frequency overwrites weights that others are training ({name})"


def check_callbacks(callbacks: Any) -> None:
    """Refuse callbacks that act on batches, which have no order among workers."""
    plain = keras.callbacks.Callback
    for callback in callbacks:
        per_batch = [
            name
            for name in _BATCHES
            if getattr(getattr(callback, name), "__func__", None) is not getattr(plain, name)
        ]
        frequency = getattr(callback, "save_freq", getattr(callback, "update_freq", None))
        if per_batch and frequency != "epoch":
            raise UserError(
                f"{type(callback).__name__} acts on every batch ({per_batch[0]}).",
                expected="callbacks that act at the ends of epochs",
                received=type(callback).__name__,
                fix='use on_epoch_end; save_freq="epoch" of ModelCheckpoint, update_freq="epoch" '
                "of TensorBoard",
            )


def build_variables(model: Any, element_spec: Any) -> None:
    """Create all variables of a model, as ``fit`` does, and refuse unbuilt optimizers.

    A model without a call() must be built by ``build``.
    """
    if type(model).call is not keras.Model.call:
        build_all(model, element_spec)
    require_built_parts(model, "in build()")
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    for name, optimizer in optimizers_of(model).items():
        if not optimizer.built:
            raise UserError(
                f"The optimizer {name} of {type(model).__name__} is not built.",
                expected="optimizers that are built before the first step",
                fix=f"in build(), call model.{name}.build(variables) with those it trains",
            )


@dataclass(frozen=True)
class Share:
    """The share of the examples of one worker, such as ``files[share.index :: share.count]``."""

    index: int
    """The number of the worker, from 0."""
    count: int
    """The number of workers."""


def shares_of(data: Callable[[Share], Any], count: int) -> tuple[Any, Any, int]:
    """Return a function that creates the dataset on its worker, its spec, and an epoch's steps."""
    shares = [data(Share(index, count)) for index in range(count)]
    steps = sum(_batches(share, index) for index, share in enumerate(shares))
    first = shares[0].element_spec
    for index, share in enumerate(shares):
        if share.element_spec != first:
            raise UserError(
                f"The share of worker {index} has other shapes or types than that of worker 0.",
                expected=str(first),
                received=str(share.element_spec),
                fix="give every worker the same shapes and types, and the same drop_remainder=",
            )

    def variant(share: Share) -> Any:
        return tf.data.experimental.to_variant(data(share).repeat())

    def dataset_of_worker() -> Any:
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        branches = {number: partial(variant, Share(number, count)) for number in range(count)}
        chosen = tf.switch_case(tf.cast(index, tf.int32), branches)
        return tf.data.experimental.from_variant(chosen, structure=first)

    return tf.function(dataset_of_worker).get_concrete_function(), first, steps


def _batches(share: Any, index: int) -> int:
    if not isinstance(share, tf.data.Dataset):
        raise UserError(
            f"data() returned no tf.data.Dataset for worker {index}.",
            expected="a function of the worker's Share that returns a batched tf.data.Dataset",
            received=type(share).__name__,
        )
    if reads_python(share):
        raise UserError(
            "The dataset calls Python, and a worker has only its graph.",
            expected="a tf.data.Dataset of TensorFlow operations",
            received="from_generator, py_function or numpy_function",
            fix="write the examples to TFRecord files and read those, or give arrays",
        )
    batches = int(share.cardinality())
    if batches < 1:
        number = {0: "0 batches", tf.data.INFINITE_CARDINALITY: "an endless dataset"}
        raise UserError(
            f"The share of worker {index} is empty, or of unknown length.",
            expected="one batch or more: an epoch has as many steps as all shares have batches",
            received=number.get(batches, "a dataset of unknown length"),
            fix="use fewer workers, dataset.take(n), or "
            ".apply(tf.data.experimental.assert_cardinality(n))",
        )
    return batches
