"""Under several replicas Keras clips gradients, and looks for overflow, before they are summed.

What is wrong: in Keras 3.15 on TensorFlow ``clipnorm``, ``global_clipnorm`` and ``clipvalue`` act
on each replica's own gradients, so the weights silently differ from those of one device; and
LossScaleOptimizer asks the first replica alone whether they are finite, since they were
"all-reduced across replicas", which they are not yet: an overflow on another one goes into the
weights.

The mend: the gradients are summed over the replicas as soon as an optimizer is asked to apply them,
and not once more. Each replica's loss counts by its share, so the sum is the gradient of the whole
batch. Guarantees: what is trained under another strategy, or none, is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from tfopt.repairs.under_strategies import UnderStrategies

_mended = UnderStrategies()
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

    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        setattr(kind, "apply", _summing(kind.apply))  # noqa: B010 (a class of Keras's)
    plain = TFOptimizer._all_reduce_sum_gradients

    def once(self: Any, grads_and_vars: Any) -> Any:
        return list(grads_and_vars) if _mended.on_a_replica() else plain(self, grads_and_vars)

    TFOptimizer._all_reduce_sum_gradients = once


def _summing(plain: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if not _mended.on_a_replica():
            return plain(self, grads, trainable_variables)
        if self not in _inner:
            grads = _summed(list(grads))
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


def _summed(grads: list[Any]) -> list[Any]:
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    sums: list[Any] = [None] * len(grads)
    # TensorFlow packs what is exchanged together, and packs one type alone.
    for kind in dict.fromkeys(grad.dtype for grad in grads if grad is not None):
        places = [n for n, grad in enumerate(grads) if grad is not None and grad.dtype == kind]
        there = [grads[place] for place in places]
        for place, total in zip(
            places, replica.all_reduce(tf.distribute.ReduceOp.SUM, there), strict=True
        ):
            sums[place] = total
    return sums
