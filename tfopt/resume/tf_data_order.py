"""Find out whether the order of a tf.data pipeline, and what a step draws, can come back.

Nothing is read from the data, and no iterator is made, which would draw from the seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import getclosurevars
from typing import Any

# Each makes its input's iterator along with its own, and makes it once: a shuffle below draws its
# seeds for an epoch when that epoch's iterator is made.
_MAKE_ONE_ITERATOR = frozenset(
    {
        "_AssertCardinalityDataset",
        "_BatchDataset",
        "_FilterDataset",
        "_FlatMapDataset",  # of its input, not of what its function makes
        "_MapDataset",
        "_OptionsDataset",
        "_PaddedBatchDataset",
        "_ParallelBatchDataset",
        "_ParallelMapDataset",
        "_PrefetchDataset",
        "_RebatchDataset",
        "_RestructuredDataset",
        "_ShardDataset",
        "_ShuffleDataset",
        "_SkipDataset",
        "_TakeDataset",
        "_UnbatchDataset",
    }
)
_DRAWS = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)
ROWS_OF_A_SOURCE = "tfopt_rows_of_a_source"
"""The name of the generator datasets whose rows, in their order, follow from a number alone."""
_PYTHON = frozenset({"EagerPyFunc", "GeneratorDataset", "PyFunc", "PyFuncStateless"})
_SHUFFLES = frozenset({"ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3"})


@dataclass
class PipelineOrder:
    """What is in a dataset, and what of it decides the order of the examples."""

    steps: list[str] = field(default_factory=list)
    """Its transformations with their seeds, the source last."""
    another_order: list[str] = field(default_factory=list)
    """What makes the order another one in each run."""
    doubts: list[str] = field(default_factory=list)
    """What may change the examples."""
    drawn_early: list[bool] = field(default_factory=list)
    """Of each part that makes an order of its own in each epoch: whether the iterator draws it."""


def order_of(dataset: Any) -> PipelineOrder:
    """Read a dataset's transformations, also those inside ``flat_map`` and ``interleave``."""
    found = PipelineOrder()
    if dataset.options().deterministic is False:
        found.another_order.append("options().deterministic is False")
    for part, above in _parts(dataset, ()):
        name = type(part).__name__
        seeds = _seeds(part)
        found.steps.append(name if seeds is None else f"{name}{seeds}")
        if name.startswith("_DataService"):
            found.another_order.append("a data service, whose workers finish in any order")
        if seeds == (0, 0):
            found.another_order.append(f"{_method_of(name)} without a seed")
        if getattr(part, "_deterministic", None) == "false":
            found.another_order.append(f"{_method_of(name)} with deterministic=False")
        reshuffles = getattr(part, "_reshuffle_each_iteration", True) is not False
        # Of the datasets without a class tfopt's pipelines hold one: the seeds of their epochs.
        if name == "_VariantDataset" or (seeds is not None and reshuffles):
            found.drawn_early.append(set(above) <= _MAKE_ONE_ITERATOR)
        for graph in _graphs(part):
            _look_into(graph, _method_of(name), "Parallel" in name, found)
    return found


def _parts(dataset: Any, above: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    yield dataset, above
    for below in dataset._inputs():
        yield from _parts(below, (*above, type(dataset).__name__))


def _seeds(part: Any) -> tuple[int, int] | None:
    if type(part).__name__ not in ("_ShuffleDataset", "_RandomDataset"):
        return None
    return int(part._seed), int(part._seed2)


def _graphs(part: Any) -> Iterator[Any]:
    """Yield the compiled functions that a transformation calls."""
    from tensorflow.python.data.ops.structured_function import StructuredFunctionWrapper

    for value in vars(part).values():
        if isinstance(value, StructuredFunctionWrapper):
            yield value.function.graph.as_graph_def()


def _nodes(graph: Any) -> Iterator[list[Any]]:
    """Yield the operations of a function and of each that it calls."""
    yield list(graph.node)
    for function in graph.library.function:
        yield list(function.node_def)


def _operations(graph: Any) -> set[str]:
    return {node.op for nodes in _nodes(graph) for node in nodes}


def draws_in_step(model: Any) -> set[str]:
    """Return the random operations of a compiled step, whose state TensorFlow keeps to itself."""
    step = getclosurevars(model.train_function).nonlocals.get("multi_step_on_iterator")
    # A step that is not compiled, or one of the user's own making, has no functions to look into.
    compiled: list[Any] = getattr(step, "_list_all_concrete_functions", list)()
    return {op for one in compiled for op in _operations(one.graph.as_graph_def()) & _DRAWS}


def _look_into(graph: Any, where: str, parallel: bool, found: PipelineOrder) -> None:
    from tensorflow import make_ndarray

    for nodes in _nodes(graph):
        constants = {n.name: make_ndarray(n.attr["value"].tensor) for n in nodes if n.op == "Const"}
        for node in nodes:
            if node.op in _SHUFFLES:
                drawn = [constants.get(name.split(":")[0]) for name in node.input[2:4]]
                if all(seed is not None and seed == 0 for seed in drawn):
                    found.another_order.append(f"shuffle inside {where} without a seed")
            if node.op in _DRAWS and (
                parallel or not (node.attr["seed"].i or node.attr["seed2"].i)
            ):
                why = "in parallel" if parallel else "without a seed"
                found.doubts.append(f"{node.op} inside {where}, drawn {why}")
    python = _operations(graph) & _PYTHON
    if python and not _reads_a_source(graph):
        where = "from_generator" if "GeneratorDataset" in python else where
        found.doubts.append(f"Python code behind {where}")
        found.drawn_early.append(False)


def _reads_a_source(graph: Any) -> bool:
    """Return whether its Python code is a source of tfopt, whose order follows from its seed."""
    made = [n for nodes in _nodes(graph) for n in nodes if n.op == "GeneratorDataset"]
    return bool(made) and all(ROWS_OF_A_SOURCE.encode() in n.attr["metadata"].s for n in made)


def _method_of(name: str) -> str:
    """Return the method that makes a class of tf.data: ``map`` for ``_ParallelMapDataset``."""
    plain = name.strip("_").removesuffix("Dataset").removeprefix("Parallel")
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in plain).lstrip("_")
