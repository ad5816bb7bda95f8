"""Keep one batch where the step computes, in an iterator that never moves on.

The batch is one that ``fit`` was handed, with the same structure, static shapes and dtypes, on the
device and under a strategy each replica's own part; so the step that runs on it is the one that was
compiled for ``fit``. On a GPU this has not been run yet.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError
from tfopt.run import Prepared

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Batch:
    """The batch of ``fit``'s first step, and the spec under which it came."""

    value: Any
    element_spec: Any


def first_batch(ready: Prepared) -> Batch:
    """Return the first batch of the training input, taken by Keras's own loop; nothing is trained.

    The model has been fitted before: Keras asks for its metrics.
    """
    import keras

    model = ready.model
    taken: list[Batch] = []

    def take(iterator: Any) -> dict[str, Any]:
        taken.append(Batch(iterator.get_next(), iterator.element_spec))
        return {}

    def stop(batch: int, logs: object) -> None:
        model.stop_training = True

    kept = model.train_function
    model.train_function = take
    try:
        # The job's callbacks may want logs that nobody has here.
        quiet = replace(ready, job=ready.job.with_(callbacks=()))
        only_once = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
        quiet.train(callbacks=[only_once], validate=False)
    finally:
        model.train_function = kept
    if not taken:
        raise builds_anew()
    return taken[0]


def builds_anew() -> UserError:
    """Return the error for a model that does not run the train function it was given."""
    return UserError(
        "The model makes its train function anew in every fit.",
        expected="make_train_function that keeps the one that is there, as Keras's does",
    )


def stand_in(batch: Batch, strategy: Any, steps: int | None) -> Any:
    """Return a dataset of the same elements for Keras's loop to hold; endless without ``steps``.

    Nobody reads it: it costs what an epoch costs without any input. Its iterators do without
    the autotuner, for which they would wait at their end.
    """
    import tensorflow as tf

    def whole(value: Any) -> Any:
        parts = strategy.experimental_local_results(value)
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)

    options = tf.data.Options()
    options.autotune.enabled = False
    with tf.device("CPU:0"):
        element = tf.nest.map_structure(whole, batch.value)
        dataset = tf.data.Dataset.from_tensors(element).repeat(-1 if steps is None else steps)
    return dataset.with_options(options)


def resident(batch: Batch, model: keras.Model, each: int) -> Any:
    """Return the iterator to hand to Keras's train function, for ``each`` steps a call.

    The function is traced anew for another ``each``; the step inside it is not.
    """
    import tensorflow as tf

    flat, device = tf.nest.flatten(batch.value, expand_composites=True), ""
    if model.distribute_strategy.num_replicas_in_sync == 1 and model.variables:
        device = model.variables[0].value.device
        flat = [_moved(tensor, device) for tensor in flat]
    return _iterator_class()(flat, _spec_class()(batch.element_spec, each, device))


def _moved(tensor: Any, device: str) -> Any:
    """Copy to the device, unless it is of a kind that only hosts hold."""
    import tensorflow as tf

    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        return tensor
    with tf.device(device):
        return tf.identity(tensor)


@functools.cache
def _spec_class() -> type:
    """Return a class derived from TensorFlow's, so made only where that is loaded."""
    import tensorflow as tf

    class ResidentSpec(tf.TypeSpec):  # type: ignore[misc]  # TensorFlow has no types
        """The type that shows ``tf.function`` the tensors inside; ``each`` makes it trace anew."""

        def __init__(self, element_spec: Any, each: int, device: str) -> None:
            self.element_spec = element_spec
            self.each = each
            self.device = device

        @property
        def value_type(self) -> type:
            return _iterator_class()

        @property
        def _component_specs(self) -> Any:
            return tuple(tf.nest.flatten(self.element_spec, expand_composites=True))

        def _to_components(self, value: Any) -> Any:
            return value.flat

        def _from_components(self, components: Any) -> Any:
            return _iterator_class()(components, self)

        def _serialize(self) -> Any:
            return (self.element_spec, self.each, self.device)

    return ResidentSpec


@functools.cache
def _iterator_class() -> type:
    """Return a class that is its tensors as an argument of a ``tf.function``, and as an iterator a
    resource: nothing of the batch becomes a constant of the graph."""
    import tensorflow as tf

    class Resident(tf.data.Iterator):  # type: ignore[misc]  # TensorFlow has no types
        """An iterator that hands out the same tensors for ever."""

        def __init__(self, flat: Any, spec: Any) -> None:
            self.flat = tuple(flat)
            self._spec = spec

        @property
        def _type_spec(self) -> Any:
            return self._spec

        @property
        def element_spec(self) -> Any:
            return self._spec.element_spec

        def get_next(self) -> Any:
            return tf.nest.pack_sequence_as(
                self._spec.element_spec, list(self.flat), expand_composites=True
            )

        def get_next_as_optional(self) -> Any:
            # Where TensorFlow chose the CPU, a GPU's tensors would go there and back each step.
            with tf.device(self._spec.device):
                return tf.experimental.Optional.from_value(self.get_next())

        def __next__(self) -> Any:
            return self.get_next()

    return Resident
