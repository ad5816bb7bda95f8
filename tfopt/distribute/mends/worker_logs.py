"""Over several processes Keras fails to average what a step tells, in every ``fit``.

What is wrong: where several processes train, Keras 3.15 on TensorFlow averages the logs of a step
by ``strategy.reduce("MEAN", value, axis=0)``. They are scalars, which have no axis 0, so the first
step fails.

The mend: they are averaged over the replicas of all workers, without an axis. Guarantees: every
worker gets the same number; what is trained under another strategy, or none, is not touched.
"""

from __future__ import annotations

from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether scalars of the replicas cannot be averaged; it takes all workers."""
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer

    def step() -> Any:
        scalars = strategy.run(lambda: tf.constant(1.0))
        return trainer.reduce_per_replica(scalars, strategy, reduction="auto")

    try:
        tf.function(step, autograph=False)()
    except ValueError:
        return True
    return False


def mend(strategy: Any) -> None:
    """Averages without an axis, under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from keras.src import tree
    from keras.src.backend.tensorflow import trainer

    plain = trainer.reduce_per_replica

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if strategy not in _mended or reduction not in ("auto", "mean"):
            return plain(values, strategy, reduction)
        return tree.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), values)

    trainer.reduce_per_replica = reduce_per_replica
