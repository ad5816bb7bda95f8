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
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from tfopt.errors import UserError
from tfopt.resume.tf_data_order import order_of

# What has to happen again for each epoch before the one that a training goes on in: nothing, an
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
    """Return the data of a ``fit`` that is about to begin; refuse an order that cannot come back.

    Nothing is read from the data but some rows of arrays, and no iterator is made.
    """
    adapter = epoch_iterator.data_adapter
    facts = {
        "kind": type(adapter).__name__.removesuffix("Adapter"),
        "batches": adapter.num_batches,
        "steps_per_epoch": epoch_iterator.steps_per_epoch,
        "steps_per_execution": epoch_iterator.steps_per_execution,
    }
    more, again, doubts = _LOOKS.get(type(adapter).__name__, _in_unknown_order)(adapter)
    # Then one iterator lasts for all epochs: where it is depends on each of them.
    if epoch_iterator.steps_per_epoch is not None:
        again = "reading"
    return Source({**facts, **more}, again, doubts)


def again_in(epoch_iterator: Any) -> Again:
    """Return the same for the validation, whose order changes no weights: nothing is refused."""
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
    """Return the bytes of rows from everywhere in an array; nothing for what is not one."""
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
    made = order_of(dataset)
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
    facts = {"spec": spec, "made by": made.steps[::-1]}
    again: Again = "nothing"
    if made.drawn_early:
        again = "iterators" if all(made.drawn_early) else "reading"
    return facts, again, tuple(made.doubts)


def _pydataset(adapter: Any) -> _Look:
    facts = {"class": type(adapter.py_dataset).__name__, "shuffle": bool(adapter.shuffle)}
    return facts, "methods" if adapter.num_batches is not None else "reading", ()


def _in_unknown_order(adapter: Any) -> _Look:
    name = type(adapter).__name__
    if name == "GeneratorDataAdapter":
        return {}, "reading", ("a Python generator, whose own state cannot be saved",)
    return {}, "reading", (f"{name}, whose order nobody can look into",)


_LOOKS = {"ArrayDataAdapter": _arrays, "TFDatasetAdapter": _dataset, "PyDatasetAdapter": _pydataset}


@dataclass(frozen=True)
class Fit:
    """The running ``fit``: its data, its callbacks, and the epoch that it was asked to begin."""

    epoch_iterator: Any
    callbacks: Any
    first_epoch: int


def running_fit(model: Any) -> Fit:
    """Return the ``fit`` that called a callback's ``on_train_begin``.

    Keras hands its epoch iterator and its list of callbacks to nobody: they are read off the frame.
    """
    from keras.src.trainers.epoch_iterator import EpochIterator

    frame = sys._getframe()
    while frame is not None:
        values = frame.f_locals
        mine = frame.f_code.co_name == "fit" and values.get("self") is model
        if mine and isinstance(values.get("epoch_iterator"), EpochIterator):
            return Fit(values["epoch_iterator"], values["callbacks"], int(values["initial_epoch"]))
        frame = frame.f_back  # type: ignore[assignment]
    raise UserError(
        "resume() works in model.fit() of Keras 3.15 on TensorFlow, and is not in one here.",
        expected="model.fit(..., callbacks=[tfopt.resume(folder)])",
        received=f"a training loop of {type(model).__name__}'s own",
    )


def go_through(epoch_iterator: Any, epochs: int, again: Again) -> None:
    """Do again what ``epochs`` whole epochs did to the state of the data."""
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
    """Make the next epoch begin at a step; ``arrived`` is called before that one is trained."""
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
    """Read the batches of one execution; return False where the data had ended before it."""
    end = object()
    read = [next(iterator, end) is not end for _ in range(steps)]
    return read[0]
