"""What hangs on a model's objects while a step is traced: attributes, and lists of losses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any


class Put:
    """Sets attributes of objects, and puts back what was there when the stack is left."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def __call__(self, target: Any, name: str, value: Any) -> None:
        there = vars(target)
        if name in there:
            self._undo.callback(object.__setattr__, target, name, there[name])
        else:
            self._undo.callback(object.__delattr__, target, name)
        object.__setattr__(target, name, value)


class LossesOfReplica(threading.local):
    """A layer's list of losses, one for each replica's thread."""

    def __init__(self) -> None:
        self._losses: list[Any] = []
        self._of_activity: list[Any] = []
        self._is_activity = False

    def noting(self, regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return an activity regularizer whose losses are known as such."""

        def noted(outputs: Any) -> Any:
            self._is_activity = True
            return regularizer(outputs)

        return noted

    def is_of_activity(self, loss: Any) -> bool:
        """Return whether a loss is what an activity regularizer has added."""
        return any(loss is each for each in self._of_activity)

    def extend(self, losses: list[Any]) -> None:
        self._losses.extend(losses)
        if self._is_activity:
            self._of_activity.extend(losses)
        self._is_activity = False

    def clear(self) -> None:
        self._losses.clear()
        self._of_activity.clear()
        self._is_activity = False  # in a stateless scope the loss went elsewhere

    def __getitem__(self, at: Any) -> Any:
        return self._losses[at]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._losses)

    def __len__(self) -> int:
        return len(self._losses)


def note_losses(put: Put, layer: Any) -> None:
    """Let a layer keep what each replica adds, and tell what its activity regularizer has added."""
    losses = LossesOfReplica()
    put(layer, "_losses", losses)
    put(layer, "_loss_ids", set())
    if layer.activity_regularizer is not None:
        put(layer, "activity_regularizer", losses.noting(layer.activity_regularizer))
