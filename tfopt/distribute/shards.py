"""Share the data out over replicas and workers so that each example of an epoch is seen once.

Files are shared out where there are enough of them, examples otherwise. What would be shared out
wrongly is refused, as far as tf.data shows it: not a shuffle inside a function of ``interleave``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from tfopt.data.stages import batch_size_of, calls_python, operations_of
from tfopt.errors import UserError
from tfopt.keras_internals import layers_of

_log = logging.getLogger("tfopt")
# Those by which TensorFlow's own sharding finds out that a dataset reads files.
_READERS = frozenset({"FixedLengthRecordDataset", "TextLineDataset", "TFRecordDataset"}) | {
    *("ArrayRecordDataset", "FixedLengthRecordDatasetV2", "TFRecordDatasetV2")
}


def refuse_what_cannot_be_split(model: Any, arguments: Mapping[str, Any], replicas: int) -> None:
    """Refuse a ``fit`` whose model or batches do not divide over the replicas.

    The last batch of an epoch, what Python code yields, and the batches of ``evaluate`` and
    ``predict`` may be uneven.
    """
    _refuse_stateful(model)
    for name in ("x", "validation_data"):
        _refuse_unbatched(name, arguments.get(name))
    batch = _batch(arguments)
    if batch is not None:
        per_replica(batch, replicas)


def _refuse_stateful(model: Any) -> None:
    import keras

    layers = [each for each in layers_of(model) if isinstance(each, keras.layers.RNN)]
    kept = [f"{each.name} ({type(each).__name__})" for each in layers if each.stateful]
    if kept:
        raise UserError(
            f"{model.name!r} keeps a state for each place of the global batch, which replicas "
            "take parts of.",
            expected="recurrent layers without stateful=True",
            received=", ".join(kept),
            fix="train with stateful=False, on longer sequences where the state mattered, and give "
            "the weights to a stateful model for inference; or train on one device",
        )


def _refuse_unbatched(name: str, data: Any) -> None:
    import tensorflow as tf

    if not isinstance(data, tf.data.Dataset):
        return
    specs = tf.nest.flatten(data.element_spec)
    if any(isinstance(each, tf.TensorSpec) and each.shape.rank == 0 for each in specs):
        raise UserError(
            f"{name} is a dataset of single examples, or has a part that is one number.",
            expected="batches, whose parts all begin with the axis of the examples",
            received=str(data.element_spec)[:300],
            fix="dataset.batch(global_batch)",
        )


def per_replica(batch: int, replicas: int) -> int:
    """Return each replica's part of a global batch; refuse one that does not divide."""
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
    """Return the global batch, where it is known; Keras makes batches of 32 of arrays."""
    import tensorflow as tf

    data = arguments.get("x")
    if isinstance(data, tf.data.Dataset):
        first = tf.nest.flatten(data.element_spec)[0]
        there = isinstance(first, tf.TensorSpec) and first.shape.rank
        return (first.shape[0] if there else None) or batch_size_of(data)
    if hasattr(data, "shape") and not arguments.get("steps_per_epoch"):
        return arguments.get("batch_size") or 32
    return arguments.get("batch_size")


def as_distributed(dataset: Any, workers: int) -> Any:
    """Return a dataset as a strategy over so many workers may distribute it."""
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        return dataset
    if reads_python(dataset):
        dataset = copied(dataset)
    if workers == 1:
        return dataset
    dataset = with_policy(dataset, workers)
    policy = policy_of(dataset)
    notes = {
        "FILE": f"each worker reads its share of {_files(dataset) or 'the'} files",
        "DATA": "each worker reads all and takes its share of every batch",
    }
    note = notes.get(policy, "each worker takes all of its own data")
    _log.info("input: %s (AutoShardPolicy.%s)", note, policy)
    if dataset.options().autotune.enabled is None:
        # Else the last iterator of an epoch may stall all workers for many seconds.
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = dataset.with_options(options)
    return dataset


def with_policy(dataset: Any, workers: int) -> Any:
    """Return the dataset with the policy by which it will be shared out in its options."""
    import tensorflow as tf

    if any("DataServiceDataset" in type(each).__name__ for each in all_of(dataset)):
        raise UserError(
            "A data service feeds one training process, with all of its GPUs.",
            expected="one worker",
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
    _refuse_own_orders(dataset, policy)
    return dataset


def until_all_have_ended(dataset: Any, workers: int) -> Any:
    """Return a dataset of which an epoch lasts until the last worker has no more.

    Keras counts an epoch's steps by the batches of the whole dataset. Where each worker has its
    own data, or files, all together take another number, and the rest would be left out.
    """
    dataset = with_policy(dataset, workers)
    if policy_of(dataset) == "DATA":
        return dataset
    # The same elements, of a number that is not known.
    return dataset.filter(_autograph_off(lambda *_: True))


def copied(dataset: Any) -> Any:
    """Return the same elements, each in memory of TensorFlow's own.

    TensorFlow 2.21 does not copy an aligned array that Python code yields, and promises not to
    write there. The parts of a batch that is split over replicas have lost that promise: a step
    may write its results into the arrays of a generator.
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
    """Return the policy that the dataset's options name: AUTO, FILE, DATA, OFF ..."""
    return str(dataset.options().experimental_distribute.auto_shard_policy.name)


def shuffle_seeds(dataset: Any) -> list[list[int]]:
    """Return the seeds of each shuffle, the last one's first; zeros are a seed drawn anew."""
    return [_seeds(each) for each in _shuffles(dataset)]


def all_of(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and all that it is made from, sources last."""
    yield dataset
    for each in dataset._inputs():
        yield from all_of(each)


def is_names(dataset: Any) -> bool:
    """Return whether each element is one string, as names of files are."""
    import tensorflow as tf

    spec = dataset.element_spec
    return bool(isinstance(spec, tf.TensorSpec) and spec.dtype == tf.string and spec.shape == ())


def reads_python(dataset: Any) -> bool:
    """Return whether Python code makes some of what it yields."""
    return any(calls_python(each) for each in all_of(dataset))


def _refuse_own_orders(dataset: Any, policy: str) -> None:
    if policy == "OFF":
        return
    for each in _shuffles(dataset):
        # After the files, a worker may have its own order of what is its own.
        before_reading = policy == "DATA" or is_names(each)
        if before_reading and not any(_seeds(each)):
            raise UserError(
                "The dataset is shuffled by a seed of each worker's own, before it is shared out: "
                "workers would see the same examples twice, and others never.",
                expected="the same order on every worker",
                received="shuffle() or list_files() without a seed, and no seed set for all",
                fix="give it a seed, or leave tf.random.set_seed as distribute() has set it",
            )


def _shuffles(dataset: Any) -> list[Any]:
    return [each for each in all_of(dataset) if type(each).__name__ == "_ShuffleDataset"]


def _seeds(shuffle: Any) -> list[int]:
    return [int(shuffle._seed), int(shuffle._seed2)]


def _files(dataset: Any) -> int | None:
    """Return how many file names the dataset begins with, where it reads files."""
    from tensorflow.core.framework import graph_pb2

    sources = [each for each in all_of(dataset) if not each._inputs()]
    if len(sources) != 1 or not is_names(sources[0]):
        return None
    graph = graph_pb2.GraphDef.FromString(dataset._as_serialized_graph().numpy())
    if not operations_of(graph) & _READERS:
        return None
    number = int(sources[0].cardinality())
    return number if number >= 0 else None
