"""Decide whether the order of a tf.data pipeline can be reproduced, and how.

No iterator is created, which would draw from the seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfopt.errors import UserError

# They create one iterator of their input with their own, in which a shuffle before them draws the
# seeds of an epoch.
_ONE_ITERATOR = frozenset(
    {
        "_AssertCardinalityDataset",
        "_BatchDataset",
        "_FilterDataset",
        "_FlatMapDataset",  # of its input, not of the results of its function
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


def replay_for(dataset: Any) -> str:
    """Return how to replay earlier epochs; refuse an order that differs in each run."""
    replay = "nothing"
    if dataset.options().deterministic is False:
        raise _order_not_reproducible("options().deterministic is False")
    for part, above in _parts(dataset, ()):
        name = type(part).__name__
        if name.startswith("_DataService"):
            raise _order_not_reproducible("a data service, whose workers finish in any order")
        draws = name in ("_ShuffleDataset", "_RandomDataset")
        if draws and int(part._seed) == int(part._seed2) == 0:
            raise _order_not_reproducible("a shuffle without a seed")
        if getattr(part, "_deterministic", None) == "false":
            raise _order_not_reproducible("deterministic=False")
        reshuffles = draws and getattr(part, "_reshuffle_each_iteration", True) is not False
        # The seeds of epochs in tfopt's pipelines are a dataset without a class.
        if name == "_VariantDataset" or reshuffles:
            if not set(above) <= _ONE_ITERATOR:
                return "reading"
            replay = "iterators"
    return replay


def _parts(dataset: Any, above: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    yield dataset, above
    for below in dataset._inputs():
        yield from _parts(below, (*above, type(dataset).__name__))


def _order_not_reproducible(what: str) -> UserError:
    return UserError(
        "The order of this dataset cannot be reproduced, which an exact resume needs.",
        expected="the same order when the script is run again",
        received=what,
        fix="shuffle(..., seed=1), or tf.random.set_seed(1) before it; and no deterministic=False",
    )
