"""Rebuild a ``tf.data`` pipeline with changes that keep its elements.

A pipeline with a stage that is not in ``_REBUILT`` cannot be rebuilt: only prefetching is offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfopt.data.host_memory import require_fits
from tfopt.data.signature import value_bytes
from tfopt.data.stages import (
    AUTOTUNE,
    Stage,
    calls_python,
    draws_random,
    kind_of,
    nodes_of,
    number_of,
    stages_of,
)

CHANGES: Mapping[str, str] = {
    "parallel_read": "num_parallel_calls=tf.data.AUTOTUNE where files are interleaved, or "
    "num_parallel_reads=tf.data.AUTOTUNE of TFRecordDataset",
    "parallel_map": "map(..., num_parallel_calls=tf.data.AUTOTUNE)",
    "batch_before_map": "batch() first, then map(lambda *batch: tf.vectorized_map(...))",
    "cache": "cache() behind the last stage whose elements are the same in every epoch",
    "prefetch": "prefetch(tf.data.AUTOTUNE) at the end",
}
"""The changes that keep the elements, and the code of each."""
_IN_MEMORY = {"arrays", "batch", "unbatch", "take", "skip", "shard"}
_CHECKED_EVERY = 64


def cache_place(stages: Sequence[Stage]) -> int | None:
    """Return the last stage whose elements are equal in every epoch, by reading some twice."""
    place, begin = None, 0
    for number, stage in enumerate(stages):
        if stage.kind in ("shuffle", "repeat", "prefetch"):
            break
        if stage.kind == "cache":
            place, begin = None, number + 1
            continue
        # With a fixed seed random elements repeat every epoch, and a cache would freeze them.
        if draws_random(stage.dataset) or not _same(stage.dataset, stage.dataset):
            break
        place = number
    if place is None or {stage.kind for stage in stages[begin : place + 1]} <= _IN_MEMORY:
        return None
    return place


def _same(one: Any, other: Any, elements: int = 8) -> bool:
    """Return whether two datasets begin with the same elements, up to rounding."""
    import numpy as np
    import tensorflow as tf

    for first, second in zip(one.take(elements), other.take(elements), strict=True):
        for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
            if a.dtype.is_floating and not np.allclose(a, b, rtol=1e-5, atol=1e-6):
                return False
            if not a.dtype.is_floating and not bool(tf.reduce_all(a == b)):
                return False
    return True


def applicable(dataset: Any) -> tuple[str, ...]:
    """Return the changes that can be applied to this pipeline and keep its elements."""
    nodes, changes = nodes_of(dataset), []
    names = [type(node).__name__ for node in nodes]
    rebuildable = set(names[1:]) <= _REBUILT.keys()
    if rebuildable and _parallel_reader(nodes) is not None:
        changes.append("parallel_read")
    if rebuildable and "_MapDataset" in names:
        changes.append("parallel_map")
    if rebuildable and _movable_map(nodes) is not None:
        changes.append("batch_before_map")
    if rebuildable and cache_place(stages_of(dataset)) is not None:
        changes.append("cache")
    if names[-1] != "_PrefetchDataset":
        changes.append("prefetch")
    return tuple(changes)


def changed(dataset: Any, changes: Sequence[str], *, sample: int | None = None) -> Any:
    """Return the pipeline with these changes.

    ``sample`` is the number of elements that a cache holds and repeats, since a measurement needs
    no whole epoch.
    """
    if set(changes) - {"prefetch"}:
        dataset = _rebuilt(dataset, changes, sample)
    return dataset.prefetch(AUTOTUNE) if "prefetch" in changes else dataset


def _rebuilt(dataset: Any, changes: Sequence[str], sample: int | None) -> Any:
    """Return the pipeline stage by stage, with the changes that apply to one of them."""
    nodes = nodes_of(dataset)
    stages = stages_of(dataset)
    place = cache_place(stages) if "cache" in changes else None
    cached = None if place is None else stages[place].dataset
    moved = _movable_map(nodes) if "batch_before_map" in changes else None
    result = nodes[0]
    if "parallel_read" in changes:
        result = _parallel_reader(nodes) or result
    if nodes[0] is cached:
        result = _cache(result, sample)
    for number, node in enumerate(nodes[1:], 1):
        # The added cache replaces those before it.
        below = kind_of(node) == "cache" and any(later is cached for later in nodes[number:])
        if number != moved and not below:
            result = _REBUILT[type(node).__name__](node, result, "parallel_map" in changes)
        if moved is not None and number > moved and kind_of(node) == "batch":
            result, moved = result.map(_by_batch(nodes[moved]), num_parallel_calls=AUTOTUNE), None
        if node is cached:
            result = _cache(result, sample)
    return result


def _cache(dataset: Any, sample: int | None) -> Any:
    """Return the dataset with a filled cache; refuse one that exceeds the memory."""
    cache = dataset.cache() if sample is None else dataset.take(sample).cache()
    size = 0
    for number, element in enumerate(cache):
        size += value_bytes(element)
        if number % _CHECKED_EVERY == 0:
            require_fits(
                size, what="The cache", detail=f"{number + 1} elements so far", fix="leave it out"
            )
    return cache if sample is None else cache.repeat()


def _parallel_reader(nodes: Sequence[Any]) -> Any | None:
    """Return a reader of several files in threads; None if the order would change."""
    import tensorflow as tf

    node, kinds = nodes[0], [kind_of(node) for node in nodes]
    name = type(node).__name__
    if (
        name == "_InterleaveDataset"
        and kind_of(node) == "read"
        and number_of(node, "_cycle_length") > 1
    ):
        return node._inputs()[0].interleave(
            node._functions()[0]._func,
            cycle_length=number_of(node, "_cycle_length"),
            block_length=number_of(node, "_block_length"),
            num_parallel_calls=AUTOTUNE,
            deterministic=True,
        )
    shuffled = name == "TFRecordDatasetV2" and "shuffle" in kinds
    if shuffled and node._num_parallel_reads is None and node._filenames.cardinality() > 1:
        return tf.data.TFRecordDataset(
            node._filenames, node._compression_type, num_parallel_reads=AUTOTUNE
        )
    return None


def _movable_map(nodes: Sequence[Any]) -> int | None:
    """Return the position of the map that can run on whole batches instead; None without one."""
    import tensorflow as tf

    kinds = [kind_of(node) for node in nodes]
    if kinds.count("batch") != 1:
        return None
    batch = kinds.index("batch")
    if type(nodes[batch]).__name__ == "_PaddedBatchDataset":
        return None  # the map would see the padding
    maps = [number for number in range(batch) if kinds[number] == "map"]
    if not maps or set(kinds[maps[-1] + 1 : batch]) - {"shuffle", "repeat", "take", "skip"}:
        return None
    node = nodes[maps[-1]]
    if calls_python(node):
        return None
    try:
        # The same elements twice, also behind a shuffle.
        (elements,) = node._inputs()[0].take(8).batch(8)
        before = tf.data.Dataset.from_tensor_slices(elements)
        by_batch = before.batch(4).map(_by_batch(node)).unbatch()
        return maps[-1] if _same(by_batch, before.map(node._map_func._func)) else None
    except (tf.errors.OpError, TypeError, ValueError, NotImplementedError):
        return None  # elements of several sizes, or what vectorized_map cannot do


def _by_batch(node: Any) -> Callable[..., Any]:
    import tensorflow as tf

    function = node._map_func._func

    def on_batch(*batch: Any) -> Any:
        several = len(batch) > 1
        return tf.vectorized_map(
            lambda example: function(*example) if several else function(example),
            batch if several else batch[0],
        )

    return on_batch


def _rebuilt_map(node: Any, before: Any, parallel: bool) -> Any:
    calls = getattr(node, "_num_parallel_calls", None)
    return before.map(
        node._map_func._func,
        num_parallel_calls=AUTOTUNE if parallel and calls is None else calls,
        deterministic=_deterministic(node),
    )


def _deterministic(node: Any) -> bool | None:
    value = getattr(node, "_deterministic", None)
    return {"true": True, "false": False}.get(value) if isinstance(value, str) else value


def _rebuilt_batch(node: Any, before: Any, parallel: bool) -> Any:
    return before.batch(
        node._batch_size,
        bool(number_of(node, "_drop_remainder")),
        num_parallel_calls=getattr(node, "_num_parallel_calls", None),
    )


def _rebuilt_length(node: Any, before: Any, parallel: bool) -> Any:
    import tensorflow as tf

    length = number_of(node, "_expected_cardinality")
    return before.apply(tf.data.experimental.assert_cardinality(length))


_REBUILT: Mapping[str, Callable[[Any, Any, bool], Any]] = {
    "_MapDataset": _rebuilt_map,
    "_ParallelMapDataset": _rebuilt_map,
    "_ShuffleDataset": lambda node, before, _: before.shuffle(
        node._buffer_size,
        number_of(node, "_seed2") or number_of(node, "_seed") or None,
        reshuffle_each_iteration=node._reshuffle_each_iteration,
    ),
    "_BatchDataset": _rebuilt_batch,
    "_ParallelBatchDataset": _rebuilt_batch,
    "_PaddedBatchDataset": lambda node, before, _: before.padded_batch(
        node._batch_size, node._padded_shapes, node._padding_values, node._drop_remainder
    ),
    "_FilterDataset": lambda node, before, _: before.filter(node._functions()[0]._func),
    "_RepeatDataset": lambda node, before, _: before.repeat(node._count),
    "_TakeDataset": lambda node, before, _: before.take(node._count),
    "CacheDataset": lambda node, before, _: before.cache(node._filename),
    "_PrefetchDataset": lambda node, before, _: before.prefetch(number_of(node, "_buffer_size")),
    "_OptionsDataset": lambda node, before, _: before.with_options(node.options()),
    "_AssertCardinalityDataset": _rebuilt_length,
}
