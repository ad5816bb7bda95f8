"""Split a ``tf.data`` pipeline into its stages, and rebuild it with changes.

A pipeline with a stage that is not in ``_REBUILT`` cannot be rebuilt: changes that need this are
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfopt.data.host_memory import require_fits
from tfopt.data.signature import value_bytes

PYTHON_OPERATIONS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Kinds that keep the size of batches (a map is assumed to), and those that keep their number too.
_KEEP_SIZE = {"cache", "filter", "map", "options", "prefetch", "repeat", "shard", "shuffle", "skip"}
_KEEP_SIZE |= {"take"}
_KEEP_NUMBER = {"cache", "options", "prefetch", "shuffle"}
_READS = {"TFRecordDatasetV2", "TextLineDatasetV2", "FixedLengthRecordDatasetV2"}
_READS_FILES = {"_InterleaveDataset", "_ParallelInterleaveDataset", "_FlatMapDataset"}
_IN_MEMORY = {"arrays", "batch", "unbatch", "take", "skip", "shard"}
_AUTO = -1  # tf.data.AUTOTUNE
CHANGES: Mapping[str, str] = {
    "parallel_read": "num_parallel_calls=tf.data.AUTOTUNE where files are interleaved, or "
    "num_parallel_reads=tf.data.AUTOTUNE of TFRecordDataset",
    "parallel_map": "map(..., num_parallel_calls=tf.data.AUTOTUNE)",
    "batch_before_map": "batch() first, then map(lambda *batch: tf.vectorized_map(...))",
    "cache": "cache() behind the last stage whose elements are the same in every epoch",
    "prefetch": "prefetch(tf.data.AUTOTUNE) at the end",
}
"""The changes that keep the elements, and the code of each."""
_CHECKED_EVERY = 64
_FILTERED = 256


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline, with the dataset up to it.

    Attributes:
        kind: Such as "map", "read" or "shuffle".
        words: The kind with its main setting: "shuffle(1000)".
        python: Whether it calls a Python function for each element.
        examples: The examples in a batch of the training that an element yields, behind filters.
    """

    kind: str
    words: str
    dataset: Any
    python: bool
    examples: float


def stages_of(dataset: Any, batch_size: int | None = None) -> tuple[Stage, ...]:
    """Return the stages from the source on, without options.

    ``batch_size`` is that of the last stage, where the source itself yields batches.
    """
    nodes = _nodes(dataset)
    size, sizes = 1, []
    for node in nodes:
        kind = _kind(node)
        size = size * _number(node, "_batch_size") if kind == "batch" else size
        size = 1 if kind == "unbatch" else size
        sizes.append(size)
    of_source, stages = max((batch_size or sizes[-1]) // sizes[-1], 1), []
    share = 1.0
    for node, size in zip(reversed(nodes), reversed(sizes), strict=True):
        if _kind(node) not in ("options", "assertcardinality"):
            examples = size * of_source * share
            stages.append(Stage(_kind(node), _words(node), node, calls_python(node), examples))
        share *= _passed(node) if _kind(node) == "filter" else 1
    return tuple(reversed(stages))


def batch_size_of(dataset: Any) -> int | None:
    """Return the argument of ``batch()``; None without one, or if a later stage may change it."""
    import tensorflow as tf

    batched = _batched(dataset, _KEEP_SIZE)
    size = None if batched is None else tf.get_static_value(batched._batch_size)
    return None if size is None else int(size)


def examples_batched(dataset: Any) -> int | None:
    """Return how many examples ``batch()`` was called on, if no other stage drops some."""
    import tensorflow as tf

    batched = _batched(dataset, _KEEP_NUMBER)
    drops = True if batched is None else tf.get_static_value(batched._drop_remainder)
    if drops is None or drops:
        return None
    (examples,) = batched._inputs()
    count = int(examples.cardinality())
    return count if count > 0 else None


def _batched(dataset: Any, through: set[str]) -> Any:
    """Return the batch stage, if only stages of these kinds follow it; else None."""
    while _kind(dataset) in through:
        (dataset,) = dataset._inputs()
    return dataset if _kind(dataset) == "batch" else None


def _passed(node: Any) -> float:
    """Return the share of the first elements that pass a filter."""
    before = node._inputs()[0].take(_FILTERED)
    passed = sum(1 for _ in before.filter(node._functions()[0]._func))
    return max(passed, 1) / max(sum(1 for _ in before), 1)


def _nodes(dataset: Any) -> list[Any]:
    """Return the datasets from the one that reads examples on."""
    nodes = [dataset]
    while _kind(nodes[-1]) not in ("read", "generator") and len(nodes[-1]._inputs()) == 1:
        nodes.append(nodes[-1]._inputs()[0])
    return nodes[::-1]


def _kind(node: Any) -> str:
    name = type(node).__name__
    if name in _READS or (name in _READS_FILES and yields_file_names(node._inputs()[0])):
        return "read"
    if name == "_FlatMapDataset" and "from_generator" in _function_name(node):
        return "generator"
    plain = name.strip("_").removesuffix("V2").removesuffix("Dataset").removeprefix("Parallel")
    return {"TensorSlice": "arrays", "PaddedBatch": "batch"}.get(plain, plain.lower())


def yields_file_names(dataset: Any) -> bool:
    """Return whether each element is one string, as a file name is."""
    import tensorflow as tf

    return bool(dataset.element_spec == tf.TensorSpec((), tf.string))


def _words(node: Any) -> str:
    kind = _kind(node)
    if kind in ("map", "filter"):
        return f"{kind}({_function_name(node)})"
    if kind in ("shuffle", "batch", "prefetch"):
        size = _number(node, "_batch_size" if kind == "batch" else "_buffer_size")
        return kind if size == _AUTO else f"{kind}({size})"
    return kind


def _number(node: Any, name: str) -> int:
    return int(getattr(node, name).numpy())


def _function_name(node: Any) -> str:
    functions = node._functions()
    name = getattr(getattr(functions[0], "_func", None), "__qualname__", "") if functions else ""
    return name.rpartition(".<locals>.")[2] if "from_generator" not in name else name


def calls_python(node: Any) -> bool:
    """Return whether this stage itself runs Python code for its elements."""
    return _kind(node) == "generator" or bool(PYTHON_OPERATIONS & _operations(node))


def upstream_datasets(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and all its inputs, sources last; nothing for data of other kinds."""
    if hasattr(dataset, "_inputs"):
        yield dataset
        for source in dataset._inputs():
            yield from upstream_datasets(source)


def reads_python(dataset: Any) -> bool:
    """Return whether a dataset calls Python code."""
    return any(map(calls_python, upstream_datasets(dataset)))


def draws_random(dataset: Any) -> bool:
    """Return whether a stage draws random numbers, as augmentation does; not for a shuffle."""
    operations = set().union(*map(_operations, upstream_datasets(dataset)))
    return any("Random" in operation for operation in operations)


def fills_a_cache(dataset: Any) -> bool:
    """Return whether the first pass over the data fills a cache."""
    return any("Cache" in type(node).__name__ for node in upstream_datasets(dataset))


def _operations(node: Any) -> set[str]:
    graphs = (function.function.graph.as_graph_def() for function in node._functions())
    return set().union(*map(operations_of, graphs))


def dataset_graph(dataset: Any) -> Any:
    """Return the graph of a dataset, with the arrays in it."""
    import tensorflow as tf

    variant = tf.data.experimental.to_variant(dataset)
    content = tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()
    return tf.compat.v1.GraphDef.FromString(content)


def operations_of(graph: Any) -> set[str]:
    """Return the types of the operations in a graph and its functions, such as "PyFunc"."""
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    return {node.op for body in bodies for node in body}


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
    nodes, changes = _nodes(dataset), []
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

    ``sample`` limits a cache to so many elements, which it repeats: a measurement needs no whole
    epoch.
    """
    nodes = _nodes(dataset)
    if tuple(changes) in ((), ("prefetch",)):
        return dataset.prefetch(_AUTO) if changes else dataset
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
        below = _kind(node) == "cache" and any(later is cached for later in nodes[number:])
        if number != moved and not below:
            result = _REBUILT[type(node).__name__](node, result, "parallel_map" in changes)
        if moved is not None and number > moved and _kind(node) == "batch":
            result, moved = result.map(_by_batch(nodes[moved]), num_parallel_calls=_AUTO), None
        if node is cached:
            result = _cache(result, sample)
    return result.prefetch(_AUTO) if "prefetch" in changes else result


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

    node, kinds = nodes[0], [_kind(node) for node in nodes]
    name = type(node).__name__
    if (
        name == "_InterleaveDataset"
        and _kind(node) == "read"
        and _number(node, "_cycle_length") > 1
    ):
        return node._inputs()[0].interleave(
            node._functions()[0]._func,
            cycle_length=_number(node, "_cycle_length"),
            block_length=_number(node, "_block_length"),
            num_parallel_calls=_AUTO,
            deterministic=True,
        )
    shuffled = name == "TFRecordDatasetV2" and "shuffle" in kinds
    if shuffled and node._num_parallel_reads is None and node._filenames.cardinality() > 1:
        return tf.data.TFRecordDataset(
            node._filenames, node._compression_type, num_parallel_reads=_AUTO
        )
    return None


def _movable_map(nodes: Sequence[Any]) -> int | None:
    """Return the position of the map that can run on whole batches instead; None without one."""
    import tensorflow as tf

    kinds = [_kind(node) for node in nodes]
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
        num_parallel_calls=_AUTO if parallel and calls is None else calls,
        deterministic=_deterministic(node),
    )


def _deterministic(node: Any) -> bool | None:
    value = getattr(node, "_deterministic", None)
    return {"true": True, "false": False}.get(value) if isinstance(value, str) else value


def _rebuilt_batch(node: Any, before: Any, parallel: bool) -> Any:
    return before.batch(
        node._batch_size,
        bool(_number(node, "_drop_remainder")),
        num_parallel_calls=getattr(node, "_num_parallel_calls", None),
    )


def _rebuilt_length(node: Any, before: Any, parallel: bool) -> Any:
    import tensorflow as tf

    length = _number(node, "_expected_cardinality")
    return before.apply(tf.data.experimental.assert_cardinality(length))


_REBUILT: Mapping[str, Callable[[Any, Any, bool], Any]] = {
    "_MapDataset": _rebuilt_map,
    "_ParallelMapDataset": _rebuilt_map,
    "_ShuffleDataset": lambda node, before, _: before.shuffle(
        node._buffer_size,
        _number(node, "_seed2") or _number(node, "_seed") or None,
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
    "_PrefetchDataset": lambda node, before, _: before.prefetch(_number(node, "_buffer_size")),
    "_OptionsDataset": lambda node, before, _: before.with_options(node.options()),
    "_AssertCardinalityDataset": _rebuilt_length,
}
