"""The position of a training in its data, and how to return to it.

Keras's loop counts the steps as in an uninterrupted training, and trained ones are skipped. Data
are read again as Keras reads them, so that shuffles draw the same orders. An order that cannot be
reproduced is refused; to find out, no iterator is created, which would draw from the seeds.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tfopt.errors import UserError
from tfopt.keras_internals import STEPS_OF_EPOCH, dataset_of

_NO_SEED = 87654321  # TensorFlow's default
# They create one iterator of their input with their own, in which a shuffle before them draws the
# seeds of an epoch.
_ONE_ITERATOR = """
_AssertCardinalityDataset _BatchDataset _FilterDataset _FlatMapDataset _MapDataset _OptionsDataset
_PaddedBatchDataset _ParallelBatchDataset _ParallelMapDataset _PrefetchDataset _RebatchDataset
_RestructuredDataset _ShardDataset _ShuffleDataset _SkipDataset _TakeDataset _UnbatchDataset
"""


def data_facts(epoch_iterator: Any) -> dict[str, Any]:
    """Return what must be equal for a step's number to mean the same examples."""
    adapter = epoch_iterator.data_adapter
    return {
        "kind": type(adapter).__name__.removesuffix("Adapter"),
        "batches": adapter.num_batches,
        "steps_per_epoch": epoch_iterator.steps_per_epoch,
        "steps_per_execution": epoch_iterator.steps_per_execution,
    }


def replay_in(epoch_iterator: Any, shuffles: bool) -> str:
    """Return what must be repeated for each epoch before the one in which a training resumes.

    "nothing", "iterators" to create each epoch's iterator, "methods" to call those of a PyDataset,
    or "reading" to read all. An order that cannot be reproduced is refused.
    """
    import tensorflow as tf

    adapter = epoch_iterator.data_adapter
    kind, replay = type(adapter).__name__, "reading"
    if kind == "ArrayDataAdapter":
        if shuffles:
            _require_seed()
        # With a seed each epoch's iterator draws the same order.
        replay = "nothing"
    elif kind == "TFDatasetAdapter":
        dataset = adapter.get_tf_dataset()
        if isinstance(dataset, tf.data.Dataset):  # not one that was distributed before fit()
            replay = _replay_of(dataset)
    elif kind == "PyDatasetAdapter" and adapter.num_batches is not None:
        replay = "methods"
    # With steps_per_epoch one iterator serves all epochs.
    return replay if epoch_iterator.steps_per_epoch is None else "reading"


def _require_seed() -> None:
    import tensorflow as tf

    if tf.compat.v1.get_seed(1)[0] == _NO_SEED:
        raise UserError(
            "fit() shuffles these arrays without a seed: the order cannot be reproduced.",
            expected="the same order when the script is run again",
            received="shuffle=True without a seed",
            fix="tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(32); or "
            "keras.utils.set_random_seed(1) before, with which Keras takes the same order in "
            "every epoch",
        )


def _replay_of(dataset: Any) -> str:
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
            if not set(above) <= set(_ONE_ITERATOR.split()):
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


@dataclass(frozen=True)
class Fit:
    """The running ``fit``: its data, callbacks, initial epoch and shuffle."""

    epoch_iterator: Any
    callbacks: Any
    first_epoch: int
    shuffles: bool


def running_fit(model: Any) -> Fit:
    """Return the ``fit`` that called a callback's ``on_train_begin``, from its frame.

    Keras gives callbacks no access to the epoch iterator and the list of callbacks.
    """
    frame = sys._getframe()
    while frame is not None:
        values = frame.f_locals
        is_fit = frame.f_code.co_name == "fit" and values.get("self") is model
        if is_fit and "epoch_iterator" in values:
            first, shuffles = int(values["initial_epoch"]), bool(values["shuffle"])
            return Fit(values["epoch_iterator"], values["callbacks"], first, shuffles)
        frame = frame.f_back  # type: ignore[assignment]
    raise UserError(
        "resume() works only in model.fit() on TensorFlow.",
        expected="model.fit(..., callbacks=[tfopt.resume(folder)])",
        received=f"a custom training loop of {type(model).__name__}",
    )


def replay_epochs(epoch_iterator: Any, epochs: int, replay: str) -> None:
    """Repeat the effect of ``epochs`` whole epochs on the state of the data."""
    adapter = epoch_iterator.data_adapter
    for _ in range(epochs):
        if replay == "methods":
            adapter.py_dataset.on_epoch_begin()
            adapter.on_epoch_end()  # which counts epochs in Keras 3.16
        elif replay == "iterators":
            iter(dataset_of(epoch_iterator))
            # At the end of an epoch of known length Keras creates another iterator.
            if adapter.num_batches is not None:
                iter(dataset_of(epoch_iterator))
        elif replay == "reading":
            _read_epoch(epoch_iterator)


def start_at(epoch_iterator: Any, step: int, arrived: Callable[[], None]) -> None:
    """Let the next epoch begin at a step; ``arrived`` is called before this step."""
    plain = getattr(epoch_iterator, STEPS_OF_EPOCH)

    def untrained_steps() -> Iterator[tuple[Any, ...]]:
        delattr(epoch_iterator, STEPS_OF_EPOCH)  # only for this epoch
        has_arrived = False
        # Keras 3.15 yields the last step of an execution too, 3.8 does not.
        for begin, *end, iterator in plain():
            if begin < step:
                _advance(iterator, epoch_iterator.steps_per_execution)
                continue
            if not has_arrived:
                arrived()
                has_arrived = True
            yield begin, *end, iterator
        if not has_arrived:
            arrived()

    setattr(epoch_iterator, STEPS_OF_EPOCH, untrained_steps)


def _read_epoch(epoch_iterator: Any) -> None:
    with warnings.catch_warnings():
        # Keras has warned about the end of the data before.
        warnings.simplefilter("ignore")
        with epoch_iterator.catch_stop_iteration():
            for *_, iterator in epoch_iterator:
                if not _advance(iterator, epoch_iterator.steps_per_execution):
                    raise StopIteration


def _advance(iterator: Any, steps: int) -> bool:
    """Read the batches of one execution; return False if the data had ended before."""
    end = object()
    read = [next(iterator, end) is not end for _ in range(steps)]
    return read[0]
