"""Exchange sums or rows between replicas, for losses and metrics of the whole batch.

Every replica computes the same loss of the whole batch, and the step differentiates an N-th of it
on each of N replicas. So the gradient of an exchanged value is a replica's part times N, without a
collective, and the gradients of all replicas sum up to that of one device.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf
from keras import tree

from tfopt.errors import UserError
from tfopt.keras_internals import mask_of, with_metadata

_ACTIVATIONS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.nn.sigmoid}
_thread = threading.local()  # each replica runs in another thread


@dataclass
class Shard:
    """The part of a step's batch on one replica."""

    examples: Any
    """The number of examples, as an int32; a replica without any gets one row of padding."""
    share: Any
    """Its examples divided by those of the batch."""
    own_losses: str | None
    """The reduction of custom losses: "mean", "sum", or not declared."""
    loss: Literal["own", "sum", "rows"] = "own"
    """The loss that is computed, or was differentiated last: the step's own, or that of the whole
    batch, as a sum over the replicas or from the rows of all."""
    is_applied: bool = False
    """Whether the step has applied an optimizer of the model."""
    rows: dict[tuple[Any, int], Any] = field(default_factory=dict)
    """Rows of tensors, gathered or without padding, for losses and metrics that share them."""
    results: list[Any] = field(default_factory=list)
    """The results of metrics in this step, equal on every replica."""

    @property
    def has_examples(self) -> Any:
        """Return whether this replica has examples."""
        return self.examples > 0

    def weigh(self, value: Any, kind: str) -> Any:
        """Return the part of a replica's "mean" or "sum" in that of the whole batch."""
        if isinstance(value, tf.IndexedSlices):
            weighed = self.weigh(value.values, kind)
            return tf.IndexedSlices(weighed, value.indices, value.dense_shape)
        value = tf.convert_to_tensor(value)
        if kind == "mean":
            value = value * tf.cast(self.share, value.dtype)
        return tf.where(self.has_examples, value, tf.zeros_like(value))  # no mean of nothing


def current_shard() -> Shard | None:
    """Return the shard of the replica that runs on this thread; None outside a step."""
    return getattr(_thread, "shard", None)


@contextmanager
def replica_step(shard: Shard | None) -> Iterator[None]:
    """Make ``shard`` the current one; ``num_replicas_in_sync`` is 1 inside, as on one device."""
    before = current_shard()
    _thread.shard = shard
    try:
        yield
    finally:
        _thread.shard = before


def replicas_of(strategy: Any) -> int:
    """Return the number of replicas, also inside ``replica_step``."""
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
    return tree.map_structure(lambda v: None if v is None else _memoized(_gather, v), structure)


def drop_padding(structure: Any) -> Any:
    """Return tensors without the padding of a replica without examples."""
    shard = current_shard()
    if shard is None or shard.examples.shape.rank is None or tf.get_static_value(shard.examples):
        return structure
    return tree.map_structure(
        lambda v: _memoized(_without_padding, v) if _has_rows(v) else v, structure
    )


def _without_padding(value: Any) -> Any:
    shard = current_shard()
    assert shard is not None
    return value[: tf.shape(value)[0] * tf.cast(shard.has_examples, tf.int32)]


def _memoized(work: Callable[[Any], Any], value: Any) -> Any:
    """Return ``work`` of the rows, computed once for a tensor in a step."""
    shard = current_shard()
    if shard is None or tf.executing_eagerly():
        return _on_rows(value, work)
    graph, key = tf.compat.v1.get_default_graph(), (work, id(value))
    entry = shard.rows.get(key)
    if entry is None or entry[0] is not value or entry[1].graph is not graph:
        entry = shard.rows[key] = value, _on_rows(value, work)
    return entry[1]


def padded(structure: Any, missing: Any, rows: Any = None) -> Any:
    """Return tensors with ``missing`` rows more, 0 or 1: of zeros, or of ``rows``.

    Many operations fail without examples. The results of such a row are dropped.
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
    """Return the number of examples of all replicas, and a padding row, in one collective.

    The row is the mean of all replicas' first rows, and so within their range.
    """
    context = tf.distribute.get_replica_context()
    flat = tree.flatten(data)
    places = [n for n, v in enumerate(flat) if _has_rows(v) and v.dtype != tf.string]
    rows = [tf.reduce_sum(tf.cast(flat[n][:1], tf.float64), 0, keepdims=True) for n in places]
    counts = tf.cast(tf.stack([examples, tf.minimum(examples, 1)]), tf.float64)
    counts, *rows = context.all_reduce("sum", [counts, *rows])
    total, replicas = tf.unstack(counts)
    means: list[Any] = [None] * len(flat)
    for n, row in zip(places, rows, strict=True):
        means[n] = tf.cast(tf.math.divide_no_nan(row, replicas), flat[n].dtype)
    return total, tree.pack_sequence_as(data, means)


def _has_rows(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.shape.rank != 0


def _on_rows(value: Any, work: Callable[[Any], Any]) -> Any:
    """Return ``work`` of the rows, with what Keras's losses look for.

    These are a mask, and the logits before a Softmax or Sigmoid.
    """
    operation: Any = None if tf.executing_eagerly() else getattr(value, "op", None)
    activation = _ACTIVATIONS.get(operation.type) if operation is not None else None
    result = work(value) if activation is None else activation(work(operation.inputs[0]))
    mask = mask_of(value)
    return with_metadata(result, None if mask is None else work(mask))


def _gather(value: Any) -> Any:
    if not isinstance(value, tf.Tensor) or value.dtype == tf.string or value.shape.rank == 0:
        raise UserError(
            "A custom loss needs the rows of all replicas, which these tensors do not allow.",
            expected="dense numeric outputs, targets and weights, examples along the first axis, "
            "or one of Keras's losses",
            received=repr(value),
            fix="use a loss of keras.losses, which exchanges sums instead, or dense tensors",
        )
    context = tf.distribute.get_replica_context()
    devices = context.strategy.extended.worker_devices
    replicas = replicas_of(context.strategy)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def gather(part: Any) -> Any:
        # The collective over several workers needs values with a device.
        with tf.device(devices[context._replica_id % len(devices)]):
            count, part = tf.shape(part, tf.int64)[:1], tf.identity(part)
        counts = context.all_gather(count, axis=0)

        def own_part(dy: Any) -> Any:
            begin = tf.reduce_sum(counts[: context.replica_id_in_sync_group])
            own = tf.convert_to_tensor(dy)[begin : begin + count[0]]
            return own * tf.cast(replicas, own.dtype)

        return context.all_gather(part, axis=0), own_part

    # TensorFlow 2.21 gathers no other types, and numbers the collectives of int32 apart, so that
    # they collide with others on CPUs.
    if value.dtype.is_integer or value.dtype == tf.bool:
        rows = tf.cast(gather(tf.cast(value, tf.int64)), value.dtype)
    elif value.dtype == tf.bfloat16:
        rows = tf.cast(gather(tf.cast(value, tf.float32)), value.dtype)
    else:
        rows = gather(value)
    if value.shape.rank is not None:
        rows.set_shape([None, *value.shape[1:]])
    return rows
