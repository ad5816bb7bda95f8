"""Under several replicas Keras takes a batch of the data to build the model by, and loses it.

What is wrong: before it trains or evaluates, Keras 3.15 on TensorFlow takes one batch to learn its
shapes from, and averages it over the replicas. Replicas with parts of unequal size end in "AddN",
one replica in each of several processes in a ValueError (keras#20585). The data are read anew
afterwards: a Python generator has lost what was read of it by then, and a PyDataset with workers
trains some batches never and others twice, silently.

The mend: the shapes are those that the data say of themselves, as on one device, and nothing is
read. Guarantees: what is trained under another strategy, or none, is not touched. A dataset that
does not say how many dimensions its elements have is read as before, but for the average: the first
replica's part is taken, here.
"""

from __future__ import annotations

from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies, throwaway_model

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether a batch is taken to build a model by."""
    import numpy as np
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    class Taken(Exception):
        pass

    class Epochs(TFEpochIterator):  # type: ignore[misc]
        def __iter__(self) -> Any:
            raise Taken

    with strategy.scope():
        model = throwaway_model()
        model.compile("sgd", "mse", jit_compile=False)
    ones = np.ones((strategy.num_replicas_in_sync, 1), "float32")
    epochs = Epochs(x=ones, y=ones, batch_size=len(ones), distribute_strategy=strategy)
    try:
        model._maybe_symbolic_build(iterator=epochs)
    except Taken:
        return True
    return False


def mend(strategy: Any) -> None:
    """Asks the data for their shapes, for models of this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    plain = TensorFlowTrainer._maybe_symbolic_build

    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        strategy = self._distribute_strategy
        if iterator is not None and strategy in _mended:
            data_batch, iterator = _said(iterator) or _first_part(strategy, iterator), None
        return plain(self, iterator=iterator, data_batch=data_batch)

    TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _said(epochs: Any) -> Any:
    """What the data say of one replica's part of a batch; None where they do not say the rank."""
    import tensorflow as tf
    from keras.src import tree

    def of_a_part(spec: Any) -> Any:
        if isinstance(spec, _per_replica_spec()):
            spec = spec._value_specs[0]
        # Keras's own for what is not given, such as a generator's sample weights.
        return None if isinstance(spec, tf.OptionalSpec) else spec

    specs = tree.map_structure(of_a_part, epochs._distributed_dataset.element_spec)
    there = [each for each in tree.flatten(specs) if each is not None]
    return specs if all(each.shape.rank is not None for each in there) else None


def _per_replica_spec() -> Any:
    from tensorflow.python.distribute import values

    return values.PerReplicaSpec


def _first_part(strategy: Any, epochs: Any) -> Any:
    """The first replica's part of an epoch's first batch; Keras resets the epoch afterwards."""
    import tensorflow as tf

    _, _, batches = next(iter(epochs))
    batch = next(batches)
    return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], batch)
