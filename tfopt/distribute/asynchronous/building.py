"""Make what the workers train on: all variables of a model, and each worker's share of examples.

Each worker goes round its own share for ever; an epoch is as many steps as all shares have batches,
taken by whoever is ready. So an example is seen about once an epoch, not exactly once.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfopt.distribute.shards import reads_python
from tfopt.distribute.step import optimizers_of, require_built_parts
from tfopt.errors import UserError
from tfopt.keras_internals import build_by_shapes

_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def check_model(model: Any) -> None:
    """Refuse what ``build`` has given where it is no model that can be trained here."""
    if not isinstance(model, keras.Model) or not model.compiled or model.optimizer is None:
        raise UserError(
            "build() gave no compiled Keras 3 model.",
            expected="model.compile(optimizer=…, loss=…) inside build",
            received=f"{type(model).__module__}.{type(model).__name__}",
        )
    for reason in _reasons(model):
        raise UserError(
            f"{model.name} cannot be trained asynchronously: {reason}.",
            expected="a model whose every step is one gradient, applied at once",
            fix="compile it without that",
        )


def _reasons(model: Any) -> Iterable[str]:
    if model.run_eagerly:
        yield "run_eagerly=True runs Python, and a worker has only the step's graph"
    if model.steps_per_execution != 1:
        yield f"steps_per_execution={model.steps_per_execution} is not available here"
    for name, optimizer in optimizers_of(model).items():
        if hasattr(optimizer, "inner_optimizer"):
            yield f"a scale of the loss is no sum of workers: use mixed_bfloat16 ({name})"
        if getattr(optimizer, "gradient_accumulation_steps", None):
            yield f"workers would accumulate into each other's gradients ({name})"
        if getattr(optimizer, "use_ema", False) and optimizer.ema_overwrite_frequency:
            yield f"ema_overwrite_frequency puts back weights that others are training ({name})"


def check_callbacks(callbacks: Any) -> None:
    """Refuse callbacks that would wait for batches: those are many workers' and have no order."""
    plain = keras.callbacks.Callback
    for callback in callbacks:
        per_batch = [
            name
            for name in _BATCHES
            if getattr(getattr(callback, name), "__func__", None) is not getattr(plain, name)
        ]
        when = getattr(callback, "save_freq", getattr(callback, "update_freq", None))
        if per_batch and when != "epoch":
            raise UserError(
                f"{type(callback).__name__} wants to be called at every batch ({per_batch[0]}).",
                expected="callbacks at the ends of epochs: many workers do batches at once",
                received=type(callback).__name__,
                fix="do it in on_epoch_end; ModelCheckpoint and TensorBoard: once an epoch",
            )


def build_variables(model: Any, element_spec: Any) -> None:
    """Make all variables of a model, as ``fit`` does, and require that its optimizers have theirs.

    A model without a call() has to be built by the function that makes it.
    """
    if type(model).call is not keras.Model.call:
        try:
            build_by_shapes(model, element_spec)
        except Exception as error:
            raise UserError(
                f"{type(model).__name__} cannot be built from the shapes of its data.",
                expected="a model whose variables can be made before its first step",
                received=f"{type(error).__name__}: {error}",
                fix="mend what Keras says, or call the model on a batch in build()",
            ) from error
    require_built_parts(model, "in build()")
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    for name, optimizer in optimizers_of(model).items():
        if not optimizer.built:
            raise UserError(
                f"The optimizer {name} of {type(model).__name__} is not built.",
                expected="optimizers that have their variables before the first step",
                fix=f"in build(), model.{name}.build(the variables that it trains)",
            )


@dataclass(frozen=True)
class Share:
    """Which part of the examples a worker is to have."""

    index: int
    """From 0; ``files[share.index :: share.count]`` is a usual way to take one's part."""
    count: int
    """How many workers the cluster has."""


def shares_of(data: Callable[[Share], Any], count: int) -> tuple[Any, Any, int]:
    """Return a function that makes a worker's dataset on it, its spec, and an epoch's steps."""
    shares = [data(Share(index, count)) for index in range(count)]
    steps = sum(_batches(share, index) for index, share in enumerate(shares))
    first = shares[0].element_spec
    for index, share in enumerate(shares):
        if share.element_spec != first:
            raise UserError(
                f"The share of worker {index} has other examples than that of worker 0.",
                expected=str(first),
                received=str(share.element_spec),
                fix="give every worker the same shapes and types; batch(…, drop_remainder=…) alike",
            )

    def variant(share: Share) -> Any:
        return tf.data.experimental.to_variant(data(share).repeat())

    def of_this_worker() -> Any:
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        branches = {number: partial(variant, Share(number, count)) for number in range(count)}
        mine = tf.switch_case(tf.cast(index, tf.int32), branches)
        return tf.data.experimental.from_variant(mine, structure=first)

    return tf.function(of_this_worker).get_concrete_function(), first, steps


def _batches(share: Any, index: int) -> int:
    if not isinstance(share, tf.data.Dataset):
        raise UserError(
            f"data() gave no tf.data.Dataset for worker {index}.",
            expected="a function of the worker's Share that returns a batched tf.data.Dataset",
            received=type(share).__name__,
        )
    if reads_python(share):
        raise UserError(
            "The dataset calls Python, and a worker has only its graph.",
            expected="a tf.data.Dataset of TensorFlow's own operations",
            received="from_generator, py_function or numpy_function",
            fix="write the examples to TFRecord files and read those, or make them of arrays",
        )
    batches = int(share.cardinality())
    if batches < 1:
        number = {0: "0 batches", tf.data.INFINITE_CARDINALITY: "an endless dataset"}
        raise UserError(
            f"The share of worker {index} is empty, or does not say how many batches it has.",
            expected="one batch or more: an epoch is as many steps as all shares have",
            received=number.get(batches, "a dataset of unknown length"),
            fix="use fewer workers, dataset.take(n), or "
            ".apply(tf.data.experimental.assert_cardinality(n))",
        )
    return batches
