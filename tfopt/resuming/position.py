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
from typing import Any

from tfopt.errors import UserError
from tfopt.resuming.data import Again


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
