"""Notice plain numbers that a model keeps in its attributes and changes while it trains.

They are in no checkpoint: a count in a Python integer, a NumPy generator, a list of numbers, of a
layer or an optimizer of the user's own class or of an object that it holds. What is only counted
when a step is traced is traced again when a training goes on, and is not noticed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfopt.resume.callback_memory import sample_digest
from tfopt.resume.packing import Unsaveable, pack
from tfopt.resume.untracked import attributes_of, is_ones_own, kept_by

_OF_FIT = frozenset({"stop_training", "_initial_epoch", "history", "built"})
_DEEP = 3


class ModelCounts:
    """The numbers of a model as they were when this was made."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before = self._read()

    def changed(self) -> list[str]:
        """Return the names of the numbers that have changed since, each name once."""
        now = self._read()
        changed = [name for name, value in self._before.items() if now.get(name, value) != value]
        for name in changed:
            del self._before[name]
        return changed

    def _read(self) -> dict[str, Any]:
        import keras

        holders = {layer.name: layer for layer in self._model._flatten_layers()}
        for layer, where, thing in kept_by(self._model):
            if isinstance(thing, keras.optimizers.Optimizer):
                holders[f"{layer.name}.{where}"] = thing
        # What Keras itself notes in a layer that is called.
        of_keras = {*vars(keras.layers.Layer(name="plain")), *_OF_FIT}
        found: dict[str, Any] = {}
        for name, holder in holders.items():
            if _is_the_users(holder):
                _read_from(holder, name, of_keras, found, _DEEP)
        return found


def _read_from(
    holder: Any, where: str, left_out: set[str], found: dict[str, Any], deep: int
) -> None:
    for name, value in attributes_of(holder).items():
        if name in left_out or callable(value):
            continue
        numbers = _numbers(value)
        if numbers is not None:
            found[f"{where}.{name}"] = numbers
        elif deep and _is_the_users(value):
            _read_from(value, f"{where}.{name}", set(), found, deep - 1)


def _is_the_users(value: Any) -> bool:
    # What tfopt itself holds on a model is kept in variables, or made anew.
    return is_ones_own(value) and not type(value).__module__.startswith("tfopt.")


def _numbers(value: Any) -> Any:
    """Return what can be compared later; None for what is no number, nor made of numbers."""
    # Keras and TensorFlow put lists and dicts of their own in the place of Python's.
    if isinstance(value, list):
        value = list(value)
    elif isinstance(value, dict):
        value = dict(value)
    elif not isinstance(value, int | float | np.number | np.ndarray | np.random.Generator):
        return None
    arrays: list[Any] = []
    try:
        packed = pack(value, arrays)
    except Unsaveable:
        return None
    return packed, [(each.shape, sample_digest(each)) for each in arrays]
