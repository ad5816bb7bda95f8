"""One step of a worker: its own batch, the gradients of it, and their way to the parameter servers.

Guarantees: the model's own ``train_step`` is what runs. The weights are read when the batch is
there and not before, the optimizer's state is read where it is kept when the gradients are there,
and no update is lost (``repairs.lost_updates``). Each step says how many gradients have been
applied between its reading of the weights and its own gradient: its staleness.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.repairs.lost_updates import Readings, kept_updates

# Each worker draws its random numbers this far behind the one before it.
_DRAWS_APART = 1 << 20


def traced_step(model: Any, iterator_spec: Any, arrived: Any) -> Any:
    """The step as a function of a worker's iterator.

    Args:
        model: A compiled model whose variables and those of its optimizer are all there.
        iterator_spec: The type of the workers' iterators.
        arrived: A variable on a ps that counts the gradients.
    """
    import tensorflow as tf
    from keras import tree

    def step(iterator: Any) -> dict[str, Any]:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        batch = next(iterator)
        leaves = [each for each in tree.flatten(batch) if each is not None]
        with (
            tf.control_dependencies(_tensors(tf, leaves)),
            kept_updates(_shared(model), _settled(model.optimizer)) as readings,
        ):
            begun = arrived.read_value()
            readings.take(_shared(model), lambda variable: _offset(tf, variable, worker))
            with _counted(tf, model.optimizer, arrived, readings) as before:
                model.train_step(batch)
        return {
            "worker": tf.cast(worker, tf.int64),
            "examples": tf.cast(_length(tf, leaves[0]), tf.int64),
            "staleness": tf.reduce_max(before) - begun,
        }

    return tf.function(step, autograph=False).get_concrete_function(iterator_spec)


def _shared(model: Any) -> list[Any]:
    rates = {id(getattr(each, "_learning_rate", None)) for each in optimizers_of(model.optimizer)}
    variables = [
        *model.non_trainable_variables,
        *model.metrics_variables,
        *(each for each in model.optimizer.variables if id(each) not in rates),
    ]
    return list({id(each): each for each in variables}.values())


def _settled(optimizer: Any) -> list[Any]:
    """A loss scale is doubled or halved: differences of two workers would make no sense."""
    return list(optimizer._variables) if hasattr(optimizer, "inner_optimizer") else []


def optimizers_of(optimizer: Any) -> list[Any]:
    """An optimizer and those inside it."""
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [optimizer, *(each for one in inner if one is not None for each in optimizers_of(one))]


def _offset(tf: Any, variable: Any, worker: Any) -> Any:
    if variable.name != "seed_generator_state":
        return None
    return tf.cast(tf.stack([tf.zeros_like(worker), worker * _DRAWS_APART]), variable.dtype)


@contextmanager
def _counted(tf: Any, optimizer: Any, arrived: Any, readings: Readings) -> Iterator[list[Any]]:
    """Counts gradients as they arrive; gives what the count was before each."""
    before: list[Any] = []
    innermost = getattr(optimizer, "inner_optimizer", optimizer)
    plain, plain_inner = optimizer.apply, innermost.apply

    def with_fresh_state(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        with tf.control_dependencies(_tensors(tf, grads)), readings.afresh(innermost.variables):
            return plain_inner(grads, trainable_variables)

    def counting(grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        with tf.control_dependencies(_tensors(tf, grads)):
            before.append(arrived.read_value())
            with tf.control_dependencies([before[-1]]):
                arrived.assign_add(1, read_value=False)
        apply = with_fresh_state if innermost is optimizer else plain
        return apply(grads, trainable_variables)

    try:
        vars(innermost)["apply"] = with_fresh_state
        vars(optimizer)["apply"] = counting
        yield before
    finally:
        for each in {id(one): one for one in (optimizer, innermost)}.values():
            vars(each).pop("apply", None)


def _tensors(tf: Any, values: list[Any]) -> list[Any]:
    return [part for each in values if each is not None for part in tf.nest.flatten(each, True)]


def _length(tf: Any, leaf: Any) -> Any:
    return leaf.dense_shape[0] if isinstance(leaf, tf.SparseTensor) else tf.shape(leaf)[0]
