"""Under several replicas Keras clips gradients, and looks for overflow, before they are summed.

What is wrong: in Keras 3.15 on TensorFlow ``clipnorm``, ``global_clipnorm`` and ``clipvalue`` act
on each replica's own gradients, so the weights silently differ from those of one device; and
LossScaleOptimizer asks the first replica alone whether they are finite, since they were
"all-reduced across replicas", which they are not yet: an overflow on another one goes into the
weights.

What is also wrong: TensorFlow puts the rows of a table that each replica takes behind each other,
also where all examples share them, as positions; Adam and others then take each for itself.

The mend: the gradients are summed over the replicas as soon as an optimizer is asked to apply them,
and not once more; in a train_step of the user's own, and for an optimizer whose ``apply`` is the
user's own, as soon as they are taken, so that what these do with them, such as clipping, they do
with the whole batch's. Each replica's loss counts by its share, so the sum is the gradient of the
whole batch. Guarantees: what is trained under another strategy, or none, is not touched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from tfopt.distribute.mends.example_axes import is_of_data
from tfopt.distribute.mends.noted_values import behind, note_summed, note_what_is_exchanged
from tfopt.distribute.mends.replica_parts import Made, Step, from_wholes, own_step_here, values_of
from tfopt.distribute.mends.under_strategies import UnderStrategies
from tfopt.errors import UserError

# What a train_step gives its optimizer, as the gradient of the whole batch.
#
# What is wrong: a step may change the whole batch's gradients by what is one replica's own, a
# loss or a random number: they are no longer the same on each replica, and no longer what is to
# be summed.
#
# The mend: where it is a loss, or a count of examples, the change is computed from the whole
# batch's; where it is chance, all take the first replica's, as one device draws once. Guarantees:
# of anything else of the data each replica's counts by its share of the batch, which is exact for
# what is added as a mean over examples, and a warning says so; gradients of the data that were
# not followed, for which nobody can tell whether they add up, are refused by name.

_EXCHANGED = 'tf.distribute.get_replica_context().all_reduce("mean", value)'


def wholes_of(
    grads: list[Any],
    step: Step,
    summed: Callable[[list[Any]], list[Any]],
    say: Callable[[str], None],
) -> list[Any]:
    """The whole batch's gradients, of what this step gives to an optimizer."""
    found: list[Any] = list(grads)
    # Exchanged all at once: what is to be summed, and what it is a gradient of then.
    parts: dict[int, Any] = {}
    for place, grad in enumerate(grads):
        if grad is None or not hasattr(values_of(grad), "graph"):
            continue
        kept = Made(grad)
        if not kept.differs:
            continue
        if kept.of_sums:
            found[place], part = _changed(grad, kept, step, say)
            if part is not None:
                parts[place] = part
        elif step.taken_forward or (kept.of_function and step.taken_inside):
            parts[place] = grad
        else:
            _refuse(step, kept)
    if not parts:
        return found
    sums = summed([parts.get(place) for place in range(len(grads))])
    for place, part in parts.items():
        rows_kept = hasattr(found[place], "indices") and not hasattr(part, "indices")
        found[place] = _with(found[place], sums[place]) if rows_kept else sums[place]
    return found


def _changed(grad: Any, made: Made, step: Step, say: Callable[[str], None]) -> tuple[Any, Any]:
    """The gradient, and what is to be summed for its values where replicas differ in them."""
    import tensorflow as tf

    if made.data:
        value = from_wholes(made, step)
        if value is not made.value:
            grad, made = _with(grad, value), Made(value)
    if not made.differs:
        return grad, None
    value, nothing = made.value, tf.zeros_like(made.value)
    if made.data:
        say(
            f"{type(step.model).__name__}.train_step changes the gradients of the whole batch by "
            "what is a replica's own: each replica's counts by its share of the batch, which is "
            "what one device does only where that is added, and a mean over the examples. "
            f"Let the replicas exchange it before: {_EXCHANGED}."
        )
        share = tf.cast(step.share(), value.dtype)
        return grad, tf.where(share > 0, value * share, nothing)
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return grad, tf.where(tf.equal(number, 0), value, nothing)


def _refuse(step: Step, made: Made) -> None:
    where = (made.data or made.chance)[0]
    raise UserError(
        f"{type(step.model).__name__}.train_step gives its optimizer gradients of the data of "
        "which tfopt cannot tell how they add up over the replicas.",
        expected="those of tape.gradient(loss, weights) or tf.gradients(loss, weights), and what "
        "is made of them",
        received=f"{made.value.name}, of {where.name}",
        fix='let the replicas exchange them before: all_reduce("sum", grads) of '
        "tf.distribute.get_replica_context() for sums over examples (divided by the number of the "
        'whole batch), all_reduce("mean", grads) for means over equally many on each replica (on '
        "one device both do nothing)",
    )


def _with(grad: Any, value: Any) -> Any:
    import tensorflow as tf

    if not hasattr(grad, "indices"):
        return value
    return tf.IndexedSlices(value, grad.indices, grad.dense_shape)


_mended = UnderStrategies()
_said: set[str] = set()
# What a loss scale applies just now: that has summed already.
_inner: WeakSet[Any] = WeakSet()


def probe(strategy: Any) -> bool:
    """Whether Keras clips before it sums; ``strategy`` has two replicas or more."""
    import keras
    import tensorflow as tf

    others = strategy.num_replicas_in_sync - 1
    with strategy.scope():
        weight = keras.Variable(0.0, name="probe")
        optimizer = keras.optimizers.SGD(1.0, clipvalue=1.0)
        optimizer.build([weight])

    def on_each() -> None:
        first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
        optimizer.apply([tf.where(first, 3.0, -1.0)], [weight])

    tf.function(lambda: strategy.run(on_each))()
    clipped_first = 1.0 - others
    return bool(abs(-float(weight.numpy()) - clipped_first) < 1e-3)


def mend(strategy: Any) -> None:
    """Sums first, in what is trained under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    import keras
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    note_what_is_exchanged()

    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        setattr(kind, "apply", _summing(kind.apply))  # noqa: B010 (a class of Keras's)
    plain = TFOptimizer._all_reduce_sum_gradients

    def once(self: Any, grads_and_vars: Any) -> Any:
        return list(grads_and_vars) if _mended.on_a_replica() else plain(self, grads_and_vars)

    TFOptimizer._all_reduce_sum_gradients = once


def sum_at_once(grads: list[Any]) -> list[Any]:
    """Sums gradients where they are taken: what a step does with them before it gives them to the
    optimizer it does with those of the whole batch, and they are not summed again."""
    import tensorflow as tf
    from tensorflow.python.eager import record

    if not _mended.on_a_replica():
        return grads
    if record.could_possibly_record():
        # Rows of tables are exchanged by what has no gradient of its own.
        grads = [None if each is None else tf.convert_to_tensor(each) for each in grads]
    sums = _summed(grads)
    for each in sums:
        if each is not None:
            note_summed(each)
    return sums


def _summing(plain: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if not _mended.on_a_replica():
            return plain(self, grads, trainable_variables)
        if self not in _inner:
            grads = _summed_once(list(grads))
        inner = getattr(self, "inner_optimizer", None)
        if inner is None:
            return plain(self, grads, trainable_variables)
        # It is asked where all replicas have met, before any of them goes on.
        _inner.add(inner)
        try:
            return plain(self, grads, trainable_variables)
        finally:
            _inner.discard(inner)

    return apply


def _summed_once(grads: list[Any]) -> list[Any]:
    """The sums of those that are not the whole batch's yet."""
    step = own_step_here()
    if step is None:
        return _summed(grads)
    return wholes_of(grads, step, _summed, _say_once)


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=6)


def _summed(grads: list[Any]) -> list[Any]:
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    of_all = [_are_rows_of_all(grad) for grad in grads]
    parts = [grad.values if rows else grad for grad, rows in zip(grads, of_all, strict=True)]
    sums: list[Any] = [None] * len(grads)
    # TensorFlow packs what is exchanged together, and packs one type alone.
    for kind in dict.fromkeys(part.dtype for part in parts if part is not None):
        places = [n for n, part in enumerate(parts) if part is not None and part.dtype == kind]
        there = [parts[place] for place in places]
        totals = replica.all_reduce(tf.distribute.ReduceOp.SUM, there)
        for place, total in zip(places, totals, strict=True):
            sums[place] = total
    return [
        tf.IndexedSlices(total, grad.indices, grad.dense_shape) if rows else total
        for grad, rows, total in zip(grads, of_all, sums, strict=True)
    ]


def _are_rows_of_all(grad: Any) -> bool:
    """Whether these are the rows of a table that every replica takes, as those of positions."""
    import tensorflow as tf

    if not isinstance(grad, tf.IndexedSlices) or not hasattr(grad.values, "graph"):
        return False
    if not grad.values.shape.is_fully_defined():
        return False
    return not any(is_of_data(op) for op in behind([grad.indices]))
