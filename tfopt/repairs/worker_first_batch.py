"""Over several processes Keras fails on the batch that it builds a model by, in every ``fit``.

What is wrong: before it trains, Keras 3.15 on TensorFlow takes one batch to learn its shapes from,
and averages it over the replicas. With one replica in each process that ends in a ValueError
(keras#20585); with more of them it would need batches of equal sizes.

The mend: the shapes are read from the first replica's part, here, with nothing sent around.
Guarantees: what is trained under another strategy, or none, is not touched.
"""

from __future__ import annotations

from typing import Any

from tfopt.repairs.under_strategies import UnderStrategies, throwaway_model

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether a model cannot be built by a batch of all workers; it takes all workers."""
    import numpy as np
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    with strategy.scope():
        model = throwaway_model()
        model.compile("sgd", "mse", jit_compile=False)
    ones = np.ones((strategy.num_replicas_in_sync, 1), "float32")
    epochs = TFEpochIterator(x=ones, y=ones, batch_size=len(ones), distribute_strategy=strategy)
    try:
        model._maybe_symbolic_build(iterator=epochs)
    except (ValueError, tf.errors.OpError):
        return True
    return False


def mend(strategy: Any) -> None:
    """Reads the shapes here, for models of this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    plain = TensorFlowTrainer._maybe_symbolic_build

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if iterator is not None and self._distribute_strategy in _mended:
            data_batch, iterator = _first_part(self._distribute_strategy, iterator), None
        return plain(self, iterator=iterator, data_batch=data_batch)

    TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _first_part(strategy: Any, epoch: Any) -> Any:
    """The first replica's part of an epoch's first batch; Keras resets the epoch afterwards."""
    import tensorflow as tf

    _, _, batches = next(iter(epoch))
    batch = next(batches)
    return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], batch)
