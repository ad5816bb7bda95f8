"""Say where in its data a training is, and bring a new one there.

The steps that ``fit`` sees, their numbers and what follows them are those of a training that was
never interrupted: Keras's own loop makes them, and those trained before are left out. What is read
again is read in Keras's own way, so that shuffles draw what they drew.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tfopt.errors import UserError
from tfopt.keras_internals import STEPS_OF_EPOCH, dataset_of
from tfopt.resume.tf_data_order import again_for

# What TensorFlow takes for its seed where none is set.
_NO_SEED = 87654321


def data_facts(epoch_iterator: Any) -> dict[str, Any]:
    """Return what must be the same for a step's number to mean the same examples."""
    adapter = epoch_iterator.data_adapter
    return {
        "kind": type(adapter).__name__.removesuffix("Adapter"),
        "batches": adapter.num_batches,
        "steps_per_epoch": epoch_iterator.steps_per_epoch,
        "steps_per_execution": epoch_iterator.steps_per_execution,
    }


def again_in(epoch_iterator: Any, shuffles: bool) -> str:
    """Return what has to happen again for each epoch before the one that a training goes on in.

    "nothing", "iterators" where each epoch's iterator is to be made, "methods" where a PyDataset's
    own are to be called, or "reading" of all. An order that cannot come back is refused.
    """
    import tensorflow as tf

    adapter = epoch_iterator.data_adapter
    kind, again = type(adapter).__name__, "reading"
    if kind == "ArrayDataAdapter":
        if shuffles:
            _require_seed()
        # With a seed each epoch's iterator draws the same order.
        again = "nothing"
    elif kind == "TFDatasetAdapter":
        dataset = adapter.get_tf_dataset()
        if isinstance(dataset, tf.data.Dataset):  # and not one that was distributed before fit()
            again = again_for(dataset)
    elif kind == "PyDatasetAdapter" and adapter.num_batches is not None:
        again = "methods"
    # One iterator for all epochs: where it is depends on each of them.
    return again if epoch_iterator.steps_per_epoch is None else "reading"


def _require_seed() -> None:
    import tensorflow as tf

    if tf.compat.v1.get_seed(1)[0] == _NO_SEED:
        raise UserError(
            "fit() shuffles these arrays by TensorFlow's seed, and none is set: the order could "
            "not come back.",
            expected="an order that is the same when the script is run again",
            received="shuffle=True without a seed",
            fix="tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(32); or "
            "keras.utils.set_random_seed(1) first, with which Keras takes the same order in "
            "every epoch",
        )


@dataclass(frozen=True)
class Fit:
    """The running ``fit``: its data and callbacks, and the epoch and shuffle that it was given."""

    epoch_iterator: Any
    callbacks: Any
    first_epoch: int
    shuffles: bool


def running_fit(model: Any) -> Fit:
    """Return the ``fit`` that called a callback's ``on_train_begin``.

    Keras hands its epoch iterator and its list of callbacks to nobody: they are read off the frame.
    """
    frame = sys._getframe()
    while frame is not None:
        values = frame.f_locals
        mine = frame.f_code.co_name == "fit" and values.get("self") is model
        if mine and "epoch_iterator" in values:
            first, shuffles = int(values["initial_epoch"]), bool(values["shuffle"])
            return Fit(values["epoch_iterator"], values["callbacks"], first, shuffles)
        frame = frame.f_back  # type: ignore[assignment]
    raise UserError(
        "resume() works in model.fit() on TensorFlow, and is not in one here.",
        expected="model.fit(..., callbacks=[tfopt.resume(folder)])",
        received=f"a training loop of {type(model).__name__}'s own",
    )


def go_through(epoch_iterator: Any, epochs: int, again: str) -> None:
    """Do again what ``epochs`` whole epochs did to the state of the data."""
    adapter = epoch_iterator.data_adapter
    for _ in range(epochs):
        if again == "methods":
            adapter.py_dataset.on_epoch_begin()
            adapter.on_epoch_end()  # which counts epochs in Keras 3.16
        elif again == "iterators":
            iter(dataset_of(epoch_iterator))
            # At an epoch's end Keras makes one more, where it knows the number of batches.
            if adapter.num_batches is not None:
                iter(dataset_of(epoch_iterator))
        elif again == "reading":
            _read_epoch(epoch_iterator)


def start_at(epoch_iterator: Any, step: int, arrived: Callable[[], None]) -> None:
    """Make the next epoch begin at a step; ``arrived`` is called before that one is trained."""
    plain = getattr(epoch_iterator, STEPS_OF_EPOCH)

    def without_those_trained() -> Iterator[tuple[Any, ...]]:
        delattr(epoch_iterator, STEPS_OF_EPOCH)  # for this epoch alone
        there = False
        # Keras 3.15 yields the last step of an execution too, 3.8 does not.
        for begin, *end, iterator in plain():
            if begin < step:
                _advance(iterator, epoch_iterator.steps_per_execution)
                continue
            if not there:
                arrived()
                there = True
            yield begin, *end, iterator
        if not there:
            arrived()

    setattr(epoch_iterator, STEPS_OF_EPOCH, without_those_trained)


def _read_epoch(epoch_iterator: Any) -> None:
    with warnings.catch_warnings():
        # That the data ended was said when it was trained.
        warnings.simplefilter("ignore")
        with epoch_iterator.catch_stop_iteration():
            for *_, iterator in epoch_iterator:
                if not _advance(iterator, epoch_iterator.steps_per_execution):
                    raise StopIteration


def _advance(iterator: Any, steps: int) -> bool:
    """Read the batches of one execution; return False where the data had ended before it."""
    end = object()
    read = [next(iterator, end) is not end for _ in range(steps)]
    return read[0]
