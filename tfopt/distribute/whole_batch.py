"""Exchange between replicas what a loss or metric of the whole batch needs: sums, or all rows.

Every replica computes the same number of the whole batch, and the step differentiates an N-th of it
on each of N replicas. So the gradient of an exchanged value is a replica's own part times N, with
nothing to exchange, and the gradients of all replicas add up to that of one device.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from keras import tree

from tfopt.errors import UserError
from tfopt.keras_internals import mask_of, with_metadata

_ACTIVATIONS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.nn.sigmoid}
_of_this_thread = threading.local()  # each replica runs in a thread of its own


@dataclass
class Shard:
    """What one replica has of a step's batch."""

    examples: Any
    """How many examples, as an int32; a replica without any is given one to run on."""
    share: Any
    """Its examples divided by the batch's."""
    own_losses: str | None
    """How the user's own losses add up: "mean", "sum", or not declared."""
    is_global_loss: bool = False
    """Whether the loss differentiated last is the whole batch's."""
    rows_are_whole: bool = False
    """Whether losses are given the rows of all replicas."""
    is_applied: bool = False
    """Whether the step has given gradients to an optimizer of the model's."""
    made: dict[tuple[Any, int], Any] = field(default_factory=dict)
    """What was made of tensors, which a loss and several metrics ask for: all rows, or own ones."""
    results: list[Any] = field(default_factory=list)
    """What metrics gave as their results in this step: the same on every replica."""

    @property
    def has_examples(self) -> Any:
        """Return whether this replica has examples."""
        return self.examples > 0

    def weigh(self, value: Any, kind: str) -> Any:
        """Return a replica's "mean" or "sum" as its part of the whole batch's."""
        if isinstance(value, tf.IndexedSlices):
            weighed = self.weigh(value.values, kind)
            return tf.IndexedSlices(weighed, value.indices, value.dense_shape)
        value = tf.convert_to_tensor(value)
        if kind == "mean":
            value = value * tf.cast(self.share, value.dtype)
        return tf.where(self.has_examples, value, tf.zeros_like(value))  # no mean of nothing


def shard_here() -> Shard | None:
    """Return the shard of the replica whose step runs on this thread."""
    return getattr(_of_this_thread, "shard", None)


@contextmanager
def replica_step(shard: Shard | None) -> Iterator[None]:
    """Make ``shard`` the current one while a replica's step is traced.

    Inside, ``num_replicas_in_sync`` is 1, as on one device.
    """
    before = shard_here()
    _of_this_thread.shard = shard
    try:
        yield
    finally:
        _of_this_thread.shard = before


def replicas_of(strategy: Any) -> int:
    """Return the number of replicas, also inside a replica's step."""
    return int(strategy.extended._num_replicas_in_sync)


def all_reduce_sum(value: Any) -> Any:
    """Return the sum over the replicas."""
    context = tf.distribute.get_replica_context()
    replicas = replicas_of(context.strategy)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def total(part: Any) -> Any:
        return context.all_reduce("sum", part), lambda dy: dy * tf.cast(replicas, dy.dtype)

    return total(value)


def divide_gradient(value: Any) -> Any:
    """Return the value, with an N-th of its gradient."""
    replicas = replicas_of(tf.distribute.get_strategy())

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def same(whole: Any) -> Any:
        return tf.identity(whole), lambda dy: dy / tf.cast(replicas, dy.dtype)

    return same(value)


def gather_rows(structure: Any) -> Any:
    """Return tensors with the rows of all replicas, in the order of the batch."""
    return tree.map_structure(lambda v: None if v is None else _once(_gathered, v), structure)


def drop_padding(structure: Any) -> Any:
    """Return tensors without the row that a replica without examples was given."""
    shard = shard_here()
    if shard is None or shard.examples.shape.rank is None or tf.get_static_value(shard.examples):
        return structure
    return tree.map_structure(lambda v: _once(_cut, v) if _has_rows(v) else v, structure)


def _cut(value: Any) -> Any:
    shard = shard_here()
    assert shard is not None
    return value[: tf.shape(value)[0] * tf.cast(shard.has_examples, tf.int32)]


def _once(work: Callable[[Any], Any], value: Any) -> Any:
    """Return what ``work`` makes of the rows; the same for the same tensor in a step."""
    shard = shard_here()
    if shard is None or tf.executing_eagerly():
        return _on_rows(value, work)
    graph, key = tf.compat.v1.get_default_graph(), (work, id(value))
    made = shard.made.get(key)
    if made is None or made[0] is not value or made[1].graph is not graph:
        made = shard.made[key] = value, _on_rows(value, work)
    return made[1]


def padded(structure: Any, missing: Any, rows: Any = None) -> Any:
    """Return tensors with ``missing`` rows more, 0 or 1: of zeros, or these.

    Many operations cannot work on no examples. What is computed of such a row counts nowhere.
    """
    flat = tree.flatten(structure)
    added = [None] * len(flat) if rows is None else tree.flatten(rows)
    pairs = zip(flat, added, strict=True)
    return tree.pack_sequence_as(structure, [_padded(*pair, missing) for pair in pairs])


def _padded(value: Any, row: Any, missing: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        lengths = tf.zeros([missing], value.row_splits.dtype)
        empty = tf.RaggedTensor.from_row_lengths(value.values[:0], lengths)
        return tf.concat([value, empty], axis=0)
    if isinstance(value, tf.SparseTensor):
        more = tf.concat([[missing], tf.zeros([tf.size(value.dense_shape) - 1], tf.int32)], axis=0)
        shape = value.dense_shape + tf.cast(more, tf.int64)
        return tf.SparseTensor(value.indices, value.values, shape)
    if not _has_rows(value):
        return value
    if row is None:
        row = tf.zeros(tf.concat([[1], tf.shape(value)[1:]], axis=0), value.dtype)
    return tf.concat([value, row[:missing]], axis=0)


def exchange_counts(examples: Any, data: Any) -> tuple[Any, Any]:
    """Return how many examples all replicas have, and a row for those that have none.

    All goes in one exchange. The row is the mean of all replicas' first ones, which is between
    them: an image, the number of a word.
    """
    context = tf.distribute.get_replica_context()
    flat = tree.flatten(data)
    places = [n for n, v in enumerate(flat) if _has_rows(v) and v.dtype != tf.string]
    # Without examples the sum over none.
    rows = [tf.reduce_sum(tf.cast(flat[n][:1], tf.float64), 0, keepdims=True) for n in places]
    counts = tf.cast(tf.stack([examples, tf.minimum(examples, 1)]), tf.float64)
    counts, *rows = context.all_reduce("sum", [counts, *rows])
    total, replicas = tf.unstack(counts)
    found: list[Any] = [None] * len(flat)
    for n, row in zip(places, rows, strict=True):
        found[n] = tf.cast(tf.math.divide_no_nan(row, replicas), flat[n].dtype)
    return total, tree.pack_sequence_as(data, found)


def _has_rows(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.shape.rank != 0


def _on_rows(value: Any, work: Callable[[Any], Any]) -> Any:
    """Return what ``work`` makes of the rows, with the marks that Keras's losses look for.

    These are a mask, and logits in front of a Softmax or Sigmoid.
    """
    operation: Any = None if tf.executing_eagerly() else getattr(value, "op", None)
    again = _ACTIVATIONS.get(operation.type) if operation is not None else None
    result = work(value) if again is None else again(work(operation.inputs[0]))
    mask = mask_of(value)
    return with_metadata(result, None if mask is None else work(mask))


def _gathered(value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or value.dtype == tf.string or value.shape.rank == 0:
        raise UserError(
            "A loss of the whole batch needs the rows of all replicas.",
            expected="dense outputs, targets and weights of numbers, which begin with the axis of "
            "the examples, or one of Keras's losses",
            received=repr(value),
            fix="use a loss of keras.losses, whose sums are exchanged instead, or dense tensors",
        )
    context = tf.distribute.get_replica_context()
    devices = context.strategy.extended.worker_devices
    replicas = replicas_of(context.strategy)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gather(part: Any) -> Any:
        # Over several workers the exchange asks on which device its values are.
        with tf.device(devices[context._replica_id % len(devices)]):
            count, part = tf.shape(part, tf.int64)[:1], tf.identity(part)
        counts = context.all_gather(count, axis=0)

        def own_part(dy: Any) -> Any:
            begin = tf.reduce_sum(counts[: context.replica_id_in_sync_group])
            own = tf.convert_to_tensor(dy)[begin : begin + count[0]]
            return own * tf.cast(replicas, own.dtype)

        return context.all_gather(part, axis=0), own_part

    # TensorFlow 2.21 exchanges no other types, and numbers those of int32 apart: on CPUs they meet
    # those of others.
    if value.dtype.is_integer or value.dtype == tf.bool:
        rows = tf.cast(gather(tf.cast(value, tf.int64)), value.dtype)
    elif value.dtype == tf.bfloat16:
        rows = tf.cast(gather(tf.cast(value, tf.float32)), value.dtype)
    else:
        rows = gather(value)
    if value.shape.rank is not None:
        rows.set_shape([None, *value.shape[1:]])
    return rows
