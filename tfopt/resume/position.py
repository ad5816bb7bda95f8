"""Where in its data a training is, and how a new one gets there.

Guarantees: the steps that ``fit`` gets to see, their numbers and what follows them are those of a
training that was never interrupted; Keras's own loop makes them, and those that were trained before
are left out. What is read again is read in Keras's own way, so that shuffles draw what they drew.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from inspect import getclosurevars
from typing import Any, Literal

import numpy as np

from tfopt.errors import UserError

# What decides whether the order of a tf.data pipeline, and what a step draws, comes back.
#
# Guarantees: a shuffle without a seed, or an order that TensorFlow may change, is found, also
# inside of ``flat_map`` and ``interleave``; nothing is read from the data, and no iterator is
# made, which would draw from the seeds.

# Each makes its input's iterator along with its own, and makes it once: a shuffle below draws its
# seeds for an epoch when that epoch's iterator is made.
_MAKE_ONE_ITERATOR = frozenset(
    {
        "_AssertCardinalityDataset",
        "_BatchDataset",
        "_FilterDataset",
        "_MapDataset",
        "_OptionsDataset",
        "_PaddedBatchDataset",
        "_ParallelBatchDataset",
        "_ParallelMapDataset",
        "_PrefetchDataset",
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
_PYTHON = frozenset({"EagerPyFunc", "GeneratorDataset", "PyFunc", "PyFuncStateless"})
_SHUFFLES = frozenset({"ShuffleDataset", "ShuffleDatasetV2", "ShuffleDatasetV3"})


@dataclass(frozen=True)
class Pipeline:
    """What is in a dataset.

    ``steps`` are its transformations with their seeds, from the source on. ``another_order`` is
    what makes the order another one in each run, and ``doubts`` what may change the examples;
    ``changes`` whether each epoch has an order of its own, and ``drawn_early`` whether that is
    settled when the epoch's iterator is made.
    """

    steps: tuple[str, ...]
    another_order: tuple[str, ...]
    doubts: tuple[str, ...]
    changes: bool
    drawn_early: bool


def pipeline_of(dataset: Any) -> Pipeline:
    """Reads a dataset's transformations."""
    steps: list[str] = []
    another: list[str] = []
    doubts: list[str] = []
    changing: list[bool] = []
    if dataset.options().deterministic is False:
        another.append("options().deterministic is False")
    for part, above in _parts(dataset, ()):
        name = type(part).__name__
        seeds = _seeds(part)
        steps.append(name if seeds is None else f"{name}{seeds}")
        if seeds == (0, 0):
            another.append(f"{_told(name)} without a seed")
        if getattr(part, "_deterministic", None) == "false":
            another.append(f"{_told(name)} with deterministic=False")
        if seeds is not None and getattr(part, "_reshuffle_each_iteration", True) is not False:
            changing.append(set(above) <= _MAKE_ONE_ITERATOR)
        for graph in _graphs(part):
            _look_into(graph, _told(name), "Parallel" in name, another, doubts)
            if _operations(graph) & _PYTHON:
                changing.append(False)
    return Pipeline(
        tuple(reversed(steps)), tuple(another), tuple(doubts), bool(changing), all(changing)
    )


def _parts(dataset: Any, above: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    yield dataset, above
    for below in dataset._inputs():
        yield from _parts(below, (*above, type(dataset).__name__))


def _seeds(part: Any) -> tuple[int, int] | None:
    if type(part).__name__ not in ("_ShuffleDataset", "_RandomDataset"):
        return None
    return int(part._seed), int(part._seed2)


def _graphs(part: Any) -> Iterator[Any]:
    """The compiled functions that a transformation calls."""
    from tensorflow.python.data.ops.structured_function import StructuredFunctionWrapper

    for value in vars(part).values():
        if isinstance(value, StructuredFunctionWrapper):
            yield value.function.graph.as_graph_def()


def _nodes(graph: Any) -> Iterator[list[Any]]:
    """The operations of a function and of each that it calls."""
    yield list(graph.node)
    for function in graph.library.function:
        yield list(function.node_def)


def _operations(graph: Any) -> set[str]:
    return {node.op for nodes in _nodes(graph) for node in nodes}


def draws_in_step(model: Any) -> set[str]:
    """The random operations of a model's compiled step, whose state TensorFlow keeps to itself."""
    step = getclosurevars(model.train_function).nonlocals.get("multi_step_on_iterator")
    # A step that is not compiled, or one of the user's own making, has no functions to look into.
    compiled: list[Any] = getattr(step, "_list_all_concrete_functions", list)()
    return {op for one in compiled for op in _operations(one.graph.as_graph_def()) & _DRAWS}


def _look_into(
    graph: Any, where: str, parallel: bool, another: list[str], doubts: list[str]
) -> None:
    from tensorflow import make_ndarray

    for nodes in _nodes(graph):
        constants = {n.name: make_ndarray(n.attr["value"].tensor) for n in nodes if n.op == "Const"}
        for node in nodes:
            if node.op in _SHUFFLES:
                drawn = [constants.get(name.split(":")[0]) for name in node.input[2:4]]
                if all(seed is not None and seed == 0 for seed in drawn):
                    another.append(f"shuffle inside {where} without a seed")
            if node.op in _DRAWS and (
                parallel or not (node.attr["seed"].i or node.attr["seed2"].i)
            ):
                why = "in parallel" if parallel else "without a seed"
                doubts.append(f"{node.op} inside {where}, drawn {why}")
    found = _operations(graph) & _PYTHON
    if found:
        where = "from_generator" if "GeneratorDataset" in found else where
        doubts.append(f"Python code behind {where}")


def _told(name: str) -> str:
    """A class of tf.data by the method that makes it: ``_ParallelMapDataset`` is ``map``."""
    plain = name.strip("_").removesuffix("Dataset").removeprefix("Parallel")
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in plain).lstrip("_")


# What a training reads: whether it can be read again in the same order, and what tells it apart.
#
# Guarantees: nothing is read from the data but some rows of arrays, and no iterator is made. Data
# whose order cannot come back is refused with the fix; what may come back otherwise is told.

# What has to happen again for the epochs before the one that a training goes on in: nothing, an
# iterator made, a PyDataset's own methods called, or all of it read.
Again = Literal["nothing", "iterators", "methods", "reading"]


@dataclass(frozen=True)
class Source:
    """The training data of one ``fit``."""

    facts: dict[str, Any]
    again: Again
    doubts: tuple[str, ...]


_ROWS_LOOKED_AT = 256


def source_of(epoch_iterator: Any) -> Source:
    """Looks at the data of a ``fit`` that is about to begin."""
    adapter = epoch_iterator.data_adapter
    facts = {
        "kind": type(adapter).__name__.removesuffix("Adapter"),
        "batches": adapter.num_batches,
        "steps_per_epoch": epoch_iterator.steps_per_epoch,
        "steps_per_execution": epoch_iterator.steps_per_execution,
    }
    more, again, doubts = _LOOKS.get(type(adapter).__name__, _unknown)(adapter)
    # Then one iterator lasts for all epochs: where it is depends on each of them.
    if epoch_iterator.steps_per_epoch is not None:
        again = "reading"
    return Source({**facts, **more}, again, doubts)


def again_in(epoch_iterator: Any) -> Again:
    """The same for the validation, whose order changes no weights: what cannot be is left out."""
    try:
        return source_of(epoch_iterator).again
    except UserError:
        return "nothing"


_Look = tuple[dict[str, Any], Again, tuple[str, ...]]


def _arrays(adapter: Any) -> _Look:
    from keras import tree
    from tensorflow.python.eager import context

    seed = context.global_seed()
    if adapter._shuffle and seed is None:
        raise UserError(
            "fit() shuffles these arrays by TensorFlow's seed, and none is set: the order could "
            "not come back.",
            expected="an order that is the same when the script is run again",
            received="shuffle=True without a seed",
            fix="tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(32); or "
            "keras.utils.set_random_seed(1) first, with which Keras 3.15 takes the same order in "
            "every epoch",
        )
    flat = [each for each in tree.flatten(adapter._inputs) if each is not None]
    facts = {
        "batch_size": adapter.batch_size,
        "shuffle": bool(adapter._shuffle),
        "seed": seed if adapter._shuffle else None,
        "shapes": [[list(each.shape), str(each.dtype)] for each in flat],
        "rows": sha256(b"".join(_some_rows(each) for each in flat)).hexdigest()[:16],
    }
    # With a seed each epoch's iterator draws the same order: see the fix above.
    return facts, "nothing", ()


def _some_rows(array: Any) -> bytes:
    """The bytes of rows from everywhere in an array; nothing of what is not one."""
    if not isinstance(array, np.ndarray) and not hasattr(array, "numpy"):
        return b""  # sparse ones, and data frames
    count = int(array.shape[0])
    rows = array[:: max(count // _ROWS_LOOKED_AT, 1)]
    return bytes(np.ascontiguousarray(rows if isinstance(rows, np.ndarray) else rows.numpy()))


def _dataset(adapter: Any) -> _Look:
    import tensorflow as tf

    dataset = adapter.get_tf_dataset()
    if not isinstance(dataset, tf.data.Dataset):
        return {}, "reading", ("a dataset that was distributed before fit()",)
    made = pipeline_of(dataset)
    if made.another_order:
        raise UserError(
            "This dataset comes in another order each time: a training could not go on where it "
            "was.",
            expected="an order that is the same when the script is run again",
            received="; ".join(dict.fromkeys(made.another_order)),
            fix="shuffle(..., seed=1), or tf.random.set_seed(1) before it; and leave deterministic "
            "as it is",
        )
    spec = [str(each) for each in tf.nest.flatten(dataset.element_spec)]
    facts = {"spec": spec, "made by": list(made.steps)}
    again: Again = "nothing"
    if made.changes:
        again = "iterators" if made.drawn_early else "reading"
    return facts, again, made.doubts


def _pydataset(adapter: Any) -> _Look:
    facts = {"class": type(adapter.py_dataset).__name__, "shuffle": bool(adapter.shuffle)}
    return facts, "methods" if adapter.num_batches is not None else "reading", ()


def _generator(adapter: Any) -> _Look:
    return {}, "reading", ("a Python generator, whose own state cannot be saved",)


def _unknown(adapter: Any) -> _Look:
    return {}, "reading", (f"{type(adapter).__name__}, whose order nobody can look into",)


_LOOKS = {
    "ArrayDataAdapter": _arrays,
    "TFDatasetAdapter": _dataset,
    "PyDatasetAdapter": _pydataset,
    "GeneratorDataAdapter": _generator,
}


@dataclass(frozen=True)
class Fit:
    """The ``fit`` that runs: its data, its callbacks, and the epoch that it was asked to begin."""

    epoch_iterator: Any
    callbacks: Any
    first_epoch: int


def running_fit(model: Any) -> Fit:
    """The ``fit`` that called a callback's ``on_train_begin``.

    Keras hands its epoch iterator and its list of callbacks to nobody: they are read off the frame.
    """
    from keras.src.trainers.epoch_iterator import EpochIterator

    frame = sys._getframe()
    while frame is not None:
        seen = frame.f_locals
        mine = frame.f_code.co_name == "fit" and seen.get("self") is model
        if mine and isinstance(seen.get("epoch_iterator"), EpochIterator):
            return Fit(seen["epoch_iterator"], seen["callbacks"], int(seen["initial_epoch"]))
        frame = frame.f_back  # type: ignore[assignment]
    raise UserError(
        "resume() works in model.fit() of Keras 3.15 on TensorFlow, and is not in one here.",
        expected="model.fit(..., callbacks=[tfopt.resume(folder)])",
        received=f"a training loop of {type(model).__name__}'s own",
    )


def go_through(epoch_iterator: Any, epochs: int, again: Again) -> None:
    """Does again what ``epochs`` whole epochs did to the state of the data."""
    adapter = epoch_iterator.data_adapter
    for _ in range(epochs):
        if again == "methods":
            adapter.py_dataset.on_epoch_begin()
            adapter.py_dataset.on_epoch_end()
        elif again == "iterators":
            iter(epoch_iterator._get_iterator())
            # At an epoch's end Keras makes one more, where it knows the number of batches.
            if adapter.num_batches is not None:
                iter(epoch_iterator._get_iterator())
        elif again == "reading":
            _read_epoch(epoch_iterator)


def start_at(epoch_iterator: Any, step: int, arrived: Callable[[], None]) -> None:
    """Makes the next epoch begin at a step; ``arrived`` is called before that one is trained."""
    plain = epoch_iterator._enumerate_iterator

    def without_those_trained() -> Iterator[tuple[int, int, Any]]:
        del epoch_iterator._enumerate_iterator  # for this epoch alone
        there = False
        for begin, end, iterator in plain():
            if begin < step:
                _advance(iterator, epoch_iterator.steps_per_execution)
                continue
            if not there:
                arrived()
                there = True
            yield begin, end, iterator
        if not there:
            arrived()

    epoch_iterator._enumerate_iterator = without_those_trained


def _read_epoch(epoch_iterator: Any) -> None:
    with warnings.catch_warnings():
        # That the data ended was said when it was trained.
        warnings.simplefilter("ignore")
        with epoch_iterator.catch_stop_iteration():
            for _, _, iterator in epoch_iterator:
                if not _advance(iterator, epoch_iterator.steps_per_execution):
                    raise StopIteration


def _advance(iterator: Any, steps: int) -> bool:
    """Reads the batches of one execution; False where the data had ended before it."""
    end = object()
    read = [next(iterator, end) is not end for _ in range(steps)]
    return read[0]
