"""Under several replicas a layer has one list of added losses, which each replica clears and fills.

What is wrong: replicas take turns whenever they exchange something. Where one that has called the
model exchanges before it has collected ``model.losses``, as in a synchronized BatchNormalization or
for the mends of this folder, the next one's call clears what ``add_loss`` and activity regularizers
had put there: losses are counted twice or not at all, silently.

The mend: each replica has its own list. Guarantees: only on replicas of a strategy that this was
asked for; what is called there stays there, and a layer's list outside is not touched.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

from tfopt.distribute.mends.under_strategies import UnderStrategies

_mended = UnderStrategies()


class _OfThisThread(threading.local):
    """Every replica has a thread of its own, in each step that is run or traced."""

    def __init__(self) -> None:
        self.losses: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


_of_this_thread = _OfThisThread()


def probe(strategy: Any) -> bool:
    """Whether a replica that has exchanged something finds another one's added loss."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        layer = keras.layers.ActivityRegularization(l1=1.0, dtype="float32", name="probe")

    def on_each() -> Any:
        replica = tf.distribute.get_replica_context()
        own = tf.cast(replica.replica_id_in_sync_group, tf.float32)
        layer(tf.reshape(own, [1, 1]))
        replica.all_reduce(tf.distribute.ReduceOp.SUM, own)
        return tf.abs(tf.add_n([tf.zeros(()), *layer.losses]) - own)

    gaps = tf.function(lambda: strategy.run(on_each), autograph=False)()
    return bool(strategy.reduce(tf.distribute.ReduceOp.SUM, gaps, axis=None) > 1e-3)


def mend(strategy: Any) -> None:
    """Keeps apart what replicas add under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    import keras
    from keras.src.backend.common.stateless_scope import in_stateless_scope

    layer = keras.Layer
    add, own, clear = layer.add_loss, layer._get_own_losses, layer._clear_losses

    def apart() -> bool:
        # A stateless scope keeps losses itself.
        return not in_stateless_scope() and _mended.on_a_replica()

    @wraps(add)
    def add_loss(self: Any, loss: Any) -> None:
        shared = len(self._losses)
        add(self, loss)
        if apart():
            # Keras has checked them, and put them in the list that it knows.
            _of_this_thread.losses.setdefault(self, []).extend(self._losses[shared:])
            del self._losses[shared:]

    @wraps(own)
    def _get_own_losses(self: Any) -> list[Any]:
        if not apart():
            return list(own(self))
        return list(_of_this_thread.losses.get(self, ()))

    @wraps(clear)
    def _clear_losses(self: Any) -> None:
        if not apart():
            clear(self)
            return
        _of_this_thread.losses.pop(self, None)
        for each in self._layers:
            each._clear_losses()

    layer.add_loss = add_loss
    layer._get_own_losses = _get_own_losses
    layer._clear_losses = _clear_losses
