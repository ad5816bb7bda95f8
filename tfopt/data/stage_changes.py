"""Rebuild a ``tf.data`` pipeline with changes that keep its elements, to measure what they bring.

A pipeline with a stage that is not in ``_REBUILT`` cannot be rebuilt: only prefetching is offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfopt.data.stages import AUTOTUNE, Stage, draws_random, kind_of, nodes_of, number_of, stages_of

CHANGES: Mapping[str, str] = {
    "parallel_read": "num_parallel_calls=tf.data.AUTOTUNE where files are interleaved, or "
    "num_parallel_reads=tf.data.AUTOTUNE of TFRecordDataset",
    "parallel_map": "map(..., num_parallel_calls=tf.data.AUTOTUNE)",
    "cache": "cache() behind the last stage whose elements are the same in every epoch",
    "prefetch": "prefetch(tf.data.AUTOTUNE) at the end",
}
"""The changes that keep the elements, and the code of each."""
_CACHED_BATCHES = 16
_IN_MEMORY = {"arrays", "batch", "unbatch", "take", "skip", "shard"}


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
        if draws_random(stage.dataset) or not _repeats(stage.dataset):
            break
        place = number
    if place is None or {stage.kind for stage in stages[begin : place + 1]} <= _IN_MEMORY:
        return None
    return place


def _repeats(dataset: Any) -> bool:
    """Return whether a dataset begins with the same elements when read again, up to rounding."""
    import numpy as np
    import tensorflow as tf

    for first, second in zip(dataset.take(8), dataset.take(8), strict=True):
        for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
            if a.dtype.is_floating and not np.allclose(a, b, rtol=1e-5, atol=1e-6):
                return False
            if not a.dtype.is_floating and not bool(tf.reduce_all(a == b)):
                return False
    return True


def applicable(dataset: Any) -> tuple[str, ...]:
    """Return the changes that can be applied to this pipeline and keep its elements."""
    nodes = nodes_of(dataset)
    rebuildable = {kind_of(node) for node in nodes[1:]} <= _REBUILT.keys()
    sequential = any(type(node).__name__ == "_MapDataset" for node in nodes)
    found = {
        "parallel_read": rebuildable and _parallel_reader(nodes) is not None,
        "parallel_map": rebuildable and sequential,
        "cache": rebuildable and cache_place(stages_of(dataset)) is not None,
        "prefetch": kind_of(nodes[-1]) != "prefetch",
    }
    return tuple(change for change, applies in found.items() if applies)


def changed(dataset: Any, changes: Sequence[str], batch_size: int) -> Any:
    """Return a pipeline that takes as long as this one with these changes; its seeds are others.

    A cache holds some batches and repeats them, since a measurement needs no whole epoch.
    """
    if set(changes) - {"prefetch"}:
        dataset = _rebuilt(dataset, changes, batch_size)
    return dataset.prefetch(AUTOTUNE) if "prefetch" in changes else dataset


def _rebuilt(dataset: Any, changes: Sequence[str], batch_size: int) -> Any:
    """Return the pipeline stage by stage, with the changes that apply to one of them."""
    nodes, stages = nodes_of(dataset), stages_of(dataset, batch_size)
    place = cache_place(stages) if "cache" in changes else None
    cached, sample = None, 0
    if place is not None:
        cached = stages[place].dataset
        sample = max(round(_CACHED_BATCHES * batch_size / stages[place].examples), 1)
    result = nodes[0]
    if "parallel_read" in changes:
        result = _parallel_reader(nodes) or result
    if nodes[0] is cached:
        result = _cache(result, sample)
    for number, node in enumerate(nodes[1:], 1):
        # The added cache replaces those before it.
        below = kind_of(node) == "cache" and any(later is cached for later in nodes[number:])
        if not below:
            result = _REBUILT[kind_of(node)](node, result, "parallel_map" in changes)
        if node is cached:
            result = _cache(result, sample)
    return result


def _cache(dataset: Any, sample: int) -> Any:
    """Return a filled cache of the first elements, repeated."""
    cache = dataset.take(sample).cache()
    for _ in cache:
        pass
    return cache.repeat()


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


def _map(node: Any, before: Any, parallel: bool) -> Any:
    calls = AUTOTUNE if parallel else getattr(node, "_num_parallel_calls", None)
    return before.map(node._map_func._func, num_parallel_calls=calls)


def _batch(node: Any, before: Any, parallel: bool) -> Any:
    size, drops = number_of(node, "_batch_size"), bool(number_of(node, "_drop_remainder"))
    if hasattr(node, "_padded_shapes"):
        return before.padded_batch(size, node._padded_shapes, node._padding_values, drops)
    return before.batch(size, drops)


_REBUILT: Mapping[str, Callable[[Any, Any, bool], Any]] = {
    "map": _map,
    "batch": _batch,
    "shuffle": lambda node, before, _: before.shuffle(number_of(node, "_buffer_size")),
    "filter": lambda node, before, _: before.filter(node._functions()[0]._func),
    "repeat": lambda node, before, _: before.repeat(node._count),
    "take": lambda node, before, _: before.take(node._count),
    "cache": lambda node, before, _: before.cache(node._filename),
    "prefetch": lambda node, before, _: before.prefetch(number_of(node, "_buffer_size")),
    "options": lambda node, before, _: before.with_options(node.options()),
    "assertcardinality": lambda node, before, _: before,
}
"""Each kind of stage made again on another input, with ``map`` in several threads or as it is."""
