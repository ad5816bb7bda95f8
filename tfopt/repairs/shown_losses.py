"""Under several replicas a Mean that a train_step gives its loss shows an N-th of it.

What is wrong: Keras 3.15 on TensorFlow divides its losses by the number of replicas, so that they
add up; a ``keras.metrics.Mean`` takes each replica's part for a value of the whole, as the trackers
of Keras's guides do, and shows their mean. Where a replica has no examples, its own mean is no
number, and neither is what is shown.

The mend: in ``train_step`` and ``test_step`` of a model's own a Mean that is given one number, a
replica's part of a loss, takes the whole batch's. Guarantees: only under a strategy that this was
asked for, and where ``own_losses`` knows what the number is made of; any other is taken as it is.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from tfopt.repairs.replica_parts import whole_of
from tfopt.repairs.under_strategies import UnderStrategies

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether a Mean shows less than the loss that each of the replicas has computed."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        shown = keras.metrics.Mean(name="probe", dtype="float32")

    def on_each() -> None:
        shown.update_state(keras.losses.MeanSquaredError()(tf.zeros([2, 1]), tf.ones([2, 1])))

    tf.function(lambda: strategy.run(on_each), autograph=False)()
    return bool(float(shown.result()) < 0.75)


def mend(strategy: Any) -> None:
    """Gives means the whole batch's loss, in what is trained under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    import keras

    plain = keras.metrics.Mean.update_state

    @wraps(plain)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> None:
        if _mended.on_a_replica() and hasattr(values, "graph") and not values.shape.rank:
            whole = whole_of(values)
            values = values if whole is None else whole
        plain(self, values, sample_weight)

    keras.metrics.Mean.update_state = update_state
