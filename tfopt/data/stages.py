"""Split a ``tf.data`` pipeline into its stages, and tell what each of them does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PYTHON_OPERATIONS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Kinds that keep the number of batches, and all that keep their size (a map is assumed to).
_KEEP_NUMBER = {"cache", "options", "prefetch", "shuffle"}
_KEEP_SIZE = _KEEP_NUMBER | {"filter", "map", "repeat", "shard", "skip", "take"}
_READS = {"TFRecordDatasetV2", "TextLineDatasetV2", "FixedLengthRecordDatasetV2"}
_READS_FILES = {"_InterleaveDataset", "_ParallelInterleaveDataset", "_FlatMapDataset"}
AUTOTUNE = -1  # tf.data.AUTOTUNE
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
    nodes = nodes_of(dataset)
    sizes, size = [], 1  # of the elements, in those of the source
    for node in nodes:
        if kind_of(node) == "batch":
            size *= number_of(node, "_batch_size")
        elif kind_of(node) == "unbatch":
            size = 1
        sizes.append(size)
    of_source = max((batch_size or size) // size, 1)
    stages, passed = [], 1.0  # the share that the filters behind a stage let pass
    for node, size in zip(reversed(nodes), reversed(sizes), strict=True):
        kind = kind_of(node)
        if kind not in ("options", "assertcardinality"):
            examples = size * of_source * passed
            stages.append(Stage(kind, _words(node), node, calls_python(node), examples))
        if kind == "filter":
            passed *= _passed(node)
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
    while kind_of(dataset) in through:
        (dataset,) = dataset._inputs()
    return dataset if kind_of(dataset) == "batch" else None


def _passed(node: Any) -> float:
    """Return the share of the first elements that pass a filter."""
    before = node._inputs()[0].take(_FILTERED)
    passed = sum(1 for _ in before.filter(node._functions()[0]._func))
    return max(passed, 1) / max(sum(1 for _ in before), 1)


def nodes_of(dataset: Any) -> list[Any]:
    """Return the datasets from the one that reads examples on."""
    nodes = [dataset]
    while kind_of(nodes[-1]) not in ("read", "generator") and len(nodes[-1]._inputs()) == 1:
        nodes.append(nodes[-1]._inputs()[0])
    return nodes[::-1]


def kind_of(node: Any) -> str:
    """Return the kind of a stage, such as "map", "read" or "shuffle"."""
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
    kind = kind_of(node)
    if kind in ("map", "filter"):
        return f"{kind}({_function_name(node)})"
    if kind in ("shuffle", "batch", "prefetch"):
        size = number_of(node, "_batch_size" if kind == "batch" else "_buffer_size")
        return kind if size == AUTOTUNE else f"{kind}({size})"
    return kind


def number_of(node: Any, name: str) -> int:
    """Return a setting of a stage."""
    return int(getattr(node, name).numpy())


def _function_name(node: Any) -> str:
    functions = node._functions()
    name = getattr(getattr(functions[0], "_func", None), "__qualname__", "") if functions else ""
    return name.rpartition(".<locals>.")[2] if "from_generator" not in name else name


def calls_python(node: Any) -> bool:
    """Return whether this stage itself runs Python code for its elements."""
    return kind_of(node) == "generator" or bool(PYTHON_OPERATIONS & _operations(node))


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
