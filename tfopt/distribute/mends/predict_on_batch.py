"""Under several replicas Keras predicts a batch given by itself on each replica whole.

What is wrong: ``predict_on_batch`` of Keras 3.15 on TensorFlow returns each example's output once
for every replica.

The mend: on one machine the batch is split over the replicas, in order, as ``predict`` does; on
several workers it is ``predict`` of that batch, which every worker must give alike. Guarantees:
what runs under another strategy, or none, is not touched; nor are ``train_on_batch`` and
``test_on_batch``, where each replica has the whole batch too: the mean over the replicas, which
they return, and the weights are right.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies, throwaway_model

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether one example has several outputs; it takes all workers."""
    import numpy as np

    with strategy.scope():
        model = throwaway_model()
        model.compile("sgd", "mse", jit_compile=False)
    return len(model.predict_on_batch(np.ones((1, 1), "float32"))) > 1


def mend(strategy: Any) -> None:
    """Splits such batches, for models of this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    plain = TensorFlowTrainer.predict_on_batch

    @wraps(plain)
    def predict_on_batch(self: Any, x: Any) -> Any:
        strategy = self.distribute_strategy
        if strategy not in _mended:
            return plain(self, x)
        if strategy.extended._in_multi_worker_mode():
            return self.predict(x, batch_size=_examples(x), verbose=0)
        return plain(self, _split(strategy, x))

    TensorFlowTrainer.predict_on_batch = predict_on_batch


def _split(strategy: Any, batch: Any) -> Any:
    """The batch with each array as one part a replica, the first ones as long as possible."""
    import tensorflow as tf
    from keras.src import tree

    count = strategy.num_replicas_in_sync

    def parts(value: Any) -> Any:
        if not isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            value = tf.convert_to_tensor(value)
        each = -(-int(value.shape[0]) // count)

        def part(context: Any) -> Any:
            begin = each * context.replica_id_in_sync_group
            if isinstance(value, tf.SparseTensor):
                others = [0] * (value.shape.rank - 1)
                return tf.sparse.slice(value, [begin, *others], [each, *value.shape[1:]])
            return value[begin : begin + each]

        return strategy.experimental_distribute_values_from_function(part)

    return tree.map_structure(parts, batch)


def _examples(x: Any) -> int:
    from keras.src import tree

    return int(tree.flatten(x)[0].shape[0])
