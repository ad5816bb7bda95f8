"""Distribute data over replicas and workers so that each example of an epoch is seen once.

Files are distributed if there are enough, else examples. A dataset that would be distributed
wrongly is refused, as far as tf.data shows it: not a shuffle inside a function of ``interleave``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tfopt.data.flow import untuned
from tfopt.data.stages import (
    batch_size_of,
    dataset_graph,
    operations_of,
    reads_python,
    upstream_datasets,
    yields_file_names,
)
from tfopt.errors import UserError

_log = logging.getLogger("tfopt")
# The operations by which TensorFlow's sharding sees that a dataset reads files.
_READERS = frozenset({"FixedLengthRecordDataset", "TextLineDataset", "TFRecordDataset"}) | {
    *("ArrayRecordDataset", "FixedLengthRecordDatasetV2", "TFRecordDatasetV2")
}


def check_divisible(arguments: Mapping[str, Any], replicas: int) -> None:
    """Refuse a ``fit`` whose batches cannot be divided over the replicas.

    The last batch of an epoch, batches of Python code, and those of ``evaluate`` and ``predict``
    may be uneven.
    """
    for name in ("x", "validation_data"):
        _refuse_unbatched(name, arguments.get(name))
    batch = _batch(arguments)
    if batch is not None:
        per_replica(batch, replicas)


def _refuse_unbatched(name: str, data: Any) -> None:
    import tensorflow as tf

    if not isinstance(data, tf.data.Dataset):
        return
    specs = tf.nest.flatten(data.element_spec)
    if any(isinstance(spec, tf.TensorSpec) and spec.shape.rank == 0 for spec in specs):
        raise UserError(
            f"{name} is a dataset of single examples, or has a scalar part.",
            expected="batches, with the examples along the first axis of each part",
            received=str(data.element_spec)[:300],
            fix="dataset.batch(global_batch)",
        )


def per_replica(batch: int, replicas: int) -> int:
    """Return the batch of each replica; refuse a global batch that does not divide."""
    if batch % replicas:
        lower = batch - batch % replicas
        raise UserError(
            f"The global batch of {batch} does not divide over {replicas} replicas.",
            expected=f"a multiple of {replicas}",
            received=str(batch),
            fix=f"use {f'{lower} or ' if lower else ''}{lower + replicas}",
        )
    return batch // replicas


def _batch(arguments: Mapping[str, Any]) -> int | None:
    """Return the global batch; None if it is unknown."""
    import tensorflow as tf

    data = arguments.get("x")
    if isinstance(data, tf.data.Dataset):
        first = tf.nest.flatten(data.element_spec)[0]
        has_rows = isinstance(first, tf.TensorSpec) and first.shape.rank
        return (first.shape[0] if has_rows else None) or batch_size_of(data)
    if hasattr(data, "shape") and not arguments.get("steps_per_epoch"):
        return arguments.get("batch_size") or 32
    return arguments.get("batch_size")


def prepare_sharding(dataset: Any, workers: int) -> Any:
    """Return a dataset for a strategy over so many workers to distribute."""
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        return dataset
    if reads_python(dataset):
        dataset = deep_copied(dataset)
    if workers == 1:
        return dataset
    dataset = with_policy(dataset, workers)
    policy = policy_of(dataset)
    notes = {
        "FILE": f"each worker reads its share of {_files(dataset) or 'the'} files",
        "DATA": "each worker reads all and takes its share of every batch",
    }
    note = notes.get(policy, "each worker takes all of its dataset")
    _log.info("input: %s (AutoShardPolicy.%s)", note, policy)
    return untuned(dataset) if dataset.options().autotune.enabled is None else dataset


def with_policy(dataset: Any, workers: int) -> Any:
    """Return the dataset with its sharding policy, FILE or DATA for AUTO, in its options."""
    import tensorflow as tf

    if any("DataServiceDataset" in type(node).__name__ for node in upstream_datasets(dataset)):
        raise UserError(
            "A data service cannot feed several workers.",
            expected="one training process, with all of its GPUs",
            received=f"{workers} workers",
            fix="drop service=: each worker reads the data and takes its part",
        )
    policy = policy_of(dataset)
    if policy == "AUTO":
        files = _files(dataset)
        policy = "FILE" if files is not None and files >= workers else "DATA"
        options = tf.data.Options()
        chosen = getattr(tf.data.experimental.AutoShardPolicy, policy)
        options.experimental_distribute.auto_shard_policy = chosen
        dataset = dataset.with_options(options)
    _refuse_unseeded_shuffles(dataset, policy)
    return dataset


def with_unknown_length(dataset: Any, workers: int) -> Any:
    """Return a dataset whose epoch lasts until the last worker has ended.

    Keras counts an epoch's steps by the batches of the whole dataset. Workers with different data
    or files take another number of steps together, and the rest would be left out.
    """
    dataset = with_policy(dataset, workers)
    if policy_of(dataset) == "DATA":
        return dataset
    return dataset.filter(_autograph_off(lambda *_: True))


def deep_copied(dataset: Any) -> Any:
    """Return a dataset of the same elements, copied to TensorFlow's memory.

    TensorFlow 2.21 shares the memory of an aligned array that Python code yields, as read-only.
    The parts of a batch that is split over replicas are no longer marked so: a step may write its
    results into the arrays of a generator.
    """
    import tensorflow as tf

    def copy(value: Any) -> Any:
        if value is None or value.dtype in (tf.variant, tf.resource):
            return value
        return tf.raw_ops.DeepCopy(x=value)

    def on_element(*parts: Any) -> Any:
        element = parts if isinstance(dataset.element_spec, tuple) else parts[0]
        return tf.nest.map_structure(copy, element, expand_composites=True)

    return dataset.map(_autograph_off(on_element))


def _autograph_off(function: Any) -> Any:
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)


def policy_of(dataset: Any) -> str:
    """Return the sharding policy in the dataset's options: AUTO, FILE, DATA, OFF ..."""
    return str(dataset.options().experimental_distribute.auto_shard_policy.name)


def shuffle_seeds(dataset: Any) -> list[list[int]]:
    """Return the seeds of each shuffle, the last one's first; zeros: a random seed."""
    return [_seeds(shuffle) for shuffle in _shuffles(dataset)]


def _refuse_unseeded_shuffles(dataset: Any, policy: str) -> None:
    if policy == "OFF":
        return
    for shuffle in _shuffles(dataset):
        # With FILE, the order behind the file names may differ between workers.
        before_sharding = policy == "DATA" or yields_file_names(shuffle)
        if before_sharding and not any(_seeds(shuffle)):
            raise UserError(
                "The dataset is shuffled by a different seed on each worker before it is sharded: "
                "some examples would be seen twice, and others never.",
                expected="the same order on every worker",
                received="shuffle() or list_files() without a seed, and no global seed",
                fix="give it a seed, or keep the tf.random.set_seed of distribute()",
            )


def _shuffles(dataset: Any) -> list[Any]:
    return [node for node in upstream_datasets(dataset) if type(node).__name__ == "_ShuffleDataset"]


def _seeds(shuffle: Any) -> list[int]:
    return [int(shuffle._seed), int(shuffle._seed2)]


def _files(dataset: Any) -> int | None:
    """Return how many files the dataset reads; None if it reads none."""
    sources = [node for node in upstream_datasets(dataset) if not node._inputs()]
    if len(sources) != 1 or not yields_file_names(sources[0]):
        return None
    if not operations_of(dataset_graph(dataset)) & _READERS:
        return None
    number = int(sources[0].cardinality())
    return number if number >= 0 else None
