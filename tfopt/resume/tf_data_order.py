"""Find out whether the order of a tf.data pipeline can come back, and what has to happen for it.

Nothing is read from the data, and no iterator is made, which would draw from the seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfopt.errors import UserError

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


def again_for(dataset: Any) -> str:
    """Return what earlier epochs have to do again; refuse an order that differs in each run."""
    again = "nothing"
    if dataset.options().deterministic is False:
        raise _another_order("options().deterministic is False")
    for part, above in _parts(dataset, ()):
        name = type(part).__name__
        if name.startswith("_DataService"):
            raise _another_order("a data service, whose workers finish in any order")
        draws = name in ("_ShuffleDataset", "_RandomDataset")
        if draws and int(part._seed) == int(part._seed2) == 0:
            raise _another_order("a shuffle without a seed")
        if getattr(part, "_deterministic", None) == "false":
            raise _another_order("deterministic=False")
        reshuffles = draws and getattr(part, "_reshuffle_each_iteration", True) is not False
        # Of the datasets without a class tfopt's pipelines hold one: the seeds of their epochs.
        if name == "_VariantDataset" or reshuffles:
            if not set(above) <= _MAKE_ONE_ITERATOR:
                return "reading"
            again = "iterators"
    return again


def _parts(dataset: Any, above: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    yield dataset, above
    for below in dataset._inputs():
        yield from _parts(below, (*above, type(dataset).__name__))


def _another_order(what: str) -> UserError:
    return UserError(
        "This dataset comes in another order each time: a training could not go on where it was.",
        expected="an order that is the same when the script is run again",
        received=what,
        fix="shuffle(..., seed=1), or tf.random.set_seed(1) before it; and leave deterministic as "
        "it is",
    )
