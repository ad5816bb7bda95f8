"""Over several processes Keras ends epochs too early, and shares out shuffled data wrongly.

What is wrong: Keras 3.15 counts an epoch's steps by the whole dataset's batches. Where each worker
has its own data, or its own files, that is another number than the steps that all take together,
and the rest of the data is silently left out. And a dataset that each worker shuffles by a seed of
its own is shared out from different orders: examples are seen twice, others never, silently. And
under tf.data's autotuner the last iterator of an epoch may stall all workers for many seconds.

The mend: such an epoch lasts until the last worker has no more data; those without data take part
with empty batches. Unseeded shuffles, and first batches of Python code that differ, are refused;
data that all workers take whole are warned of; who shares what is said in the log "tfopt".
The autotuner is off where the dataset's options do not ask for it.
Guarantees: what is trained under another strategy, or none, is not touched; a DistributedDataset
is left as it is.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

from tfopt.compress.hooks import replaced
from tfopt.data.sources.table import ROWS_OF_A_SOURCE
from tfopt.distribute import workers
from tfopt.distribute.data_content import CONTENT, content_of_batches, content_of_dataset
from tfopt.distribute.shards import reads_python, shared_out
from tfopt.distribute.workers import Exchange
from tfopt.job.cluster_place import exchange_of

_log = logging.getLogger("tfopt")


def mended(strategy: Any) -> AbstractContextManager[None]:
    """Count the steps that are taken inside, under this strategy."""
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TFEpochIterator
    from keras.src.trainers.epoch_iterator import EpochIterator

    plain = TFEpochIterator.__init__

    def begin(self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        if distribute_strategy is not strategy:
            plain(self, distribute_strategy, *args, **kwargs)
            return
        EpochIterator.__init__(self, *args, **kwargs)
        self._distribute_strategy = strategy
        dataset, first = _with_first_batches(self.data_adapter)
        exchange = exchange_of(strategy)
        # A prediction within a fit may be one worker's alone: told where it meets the others.
        if exchange is not None and workers.calls[1:] != ["predict"]:
            seen = content_of_batches(first) if first else None
            exchange.require_alike({f"{CONTENT} of the first batches": seen})
        if not isinstance(dataset, tf.distribute.DistributedDataset | _from_function()):
            shares = shared_out(dataset, strategy.extended._num_workers)
            if shares.policy == "OFF" and exchange is not None:
                _warn_of_the_same(exchange, shares.dataset)
            _log.info("input: %s (AutoShardPolicy.%s)", shares.note, shares.policy)
            if not shares.of_known_length and self.steps_per_epoch is None:
                _end_with_the_data(self)
            dataset = _without_the_autotuner(shares.dataset)
            dataset = strategy.experimental_distribute_dataset(dataset)
        self._distributed_dataset = dataset

    return replaced(TFEpochIterator, __init__=begin)


def _with_first_batches(adapter: Any) -> tuple[Any, list[Any]]:
    """Return Keras's dataset, and the batches of Python code that it took for their shapes."""
    from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    if isinstance(adapter, GeneratorDataAdapter):
        return adapter.get_tf_dataset(), adapter._first_batches
    first: list[Any] = []
    if not isinstance(adapter, PyDatasetAdapter):
        return adapter.get_tf_dataset(), first

    def noted(batch: Any) -> Any:
        first.append(PyDatasetAdapter._standardize_batch(adapter, batch))
        return first[-1]

    with replaced(adapter, _standardize_batch=noted):
        return adapter.get_tf_dataset(), first


def _warn_of_the_same(exchange: Exchange, dataset: Any) -> None:
    """Warn of what each worker takes whole, where all have the same."""
    import tensorflow as tf

    if reads_python(dataset):
        graph = dataset._as_serialized_graph(
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE
        )
        if ROWS_OF_A_SOURCE.encode() in graph.numpy():
            return  # shared out by tfopt.pipeline
    content = content_of_dataset(dataset)
    told = exchange.gather({"call": "the same input", "content": content}).values()
    if content is not None and all(each["content"] == content for each in told):
        warnings.warn(
            f"AutoShardPolicy.OFF, and the same data on all {len(told)} workers: each example is "
            "seen by every one of them. Leave the policy out, and tfopt shares them out; or give "
            "each worker data of its own.",
            RuntimeWarning,
            stacklevel=2,
        )


def _without_the_autotuner(dataset: Any) -> Any:
    """Spare iterators the long wait at their end."""
    import tensorflow as tf

    if dataset.options().autotune.enabled is not None:  # the user's own choice
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _from_function() -> Any:
    from tensorflow.python.distribute import input_lib

    return input_lib.DistributedDatasetsFromFunction


def _end_with_the_data(epochs: Any) -> None:
    # The same adapter, but it does not say how many batches it has.
    adapter = copy(epochs.data_adapter)
    kind = type(adapter)
    adapter.__class__ = type(kind.__name__, (kind,), {"num_batches": None})
    epochs.data_adapter = adapter
    epochs._num_batches = None
    # Keras would warn that the data ran out before what it takes for an epoch.
    epochs._interrupted_warning = lambda: None
