"""Remember what the other callbacks of a training keep: its history, the best loss, a count.

Kept are plain values (numbers, texts, arrays, NumPy's generators, and lists, tuples and dicts of
them), and only those that change while it trains, so that a checkpoint never overrides a setting in
the script. What else a callback holds that may change is named. A callback with ``get_state()`` and
``set_state(state)`` is asked in place of its attributes.

What can be called (functions, classes, schedules) remembers nothing, nor does what has no variables
but those of the model.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from copy import deepcopy
from hashlib import sha256
from types import ModuleType
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.packing import Unsaveable, pack

# Keras's own: which model it is, and what fit() was asked.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})


def _content(value: Any) -> Any:
    """Return what is in a value, to be compared."""
    arrays: list[Any] = []
    packed = pack(value, arrays)
    return packed, [(each.dtype.name, each.shape, _digest(each)) for each in arrays]


def _digest(array: Any) -> bytes:
    return sha256(array.tobytes()).digest()


def _remembers_nothing(value: Any, known: frozenset[int]) -> bool:
    """Return whether nothing in a value changes but the variables ``known`` by their ids."""
    import keras

    if type(value) in (list, tuple, dict):
        parts = value.values() if isinstance(value, dict) else value
        return all(_remembers_nothing(each, known) for each in parts)
    if isinstance(value, keras.Variable):
        value = value.value
    if isinstance(value, keras.Layer | keras.Metric | keras.optimizers.Optimizer):
        return all(id(each.value) in known for each in value.variables)
    of_keras = isinstance(value, keras.callbacks.Callback | ModuleType)
    return value is None or of_keras or callable(value) or id(value) in known


class Memory:
    """What callbacks remember, to be read and put back; made when each has begun its training."""

    def __init__(self, callbacks: list[Any], known: frozenset[int] = frozenset()) -> None:
        """Read the callbacks; variables whose id is ``known`` are in the checkpoint anyway."""
        self._known = known
        self._callbacks = dict(zip(_names(callbacks), callbacks, strict=True))
        self._begun = {name: self._attributes(each) for name, each in self._callbacks.items()}
        self.unsaveable: set[str] = set()

    def read(self) -> dict[str, Any]:
        """Return what has changed in each callback since it began, by the callback's name."""
        return {name: self._read_one(name, each) for name, each in self._callbacks.items()}

    def put_back(self, state: dict[str, Any]) -> list[str]:
        """Put back what was read; return the names of what no callback here takes up."""
        left = []
        for name, remembered in state.items():
            callback = self._callbacks.get(name)
            if callback is None or ("told" in remembered) != _has_state(callback):
                left += [name] if any(remembered.values()) else []
            elif _has_state(callback):
                callback.set_state(remembered["told"])
            else:
                for attribute, value in remembered["attributes"].items():
                    # It may be put back twice, and changed in place in between.
                    setattr(callback, attribute, deepcopy(value))
        return left

    def _read_one(self, name: str, callback: Any) -> dict[str, Any]:
        if _has_state(callback):
            return {"told": _state_of(callback, name)}
        attributes = {}
        # What Keras's own callbacks keep that cannot be saved are writers and files.
        own = type(callback).__module__.split(".")[0] != "keras"
        for attribute, value in vars(callback).items():
            if attribute in _NOT_STATE:
                continue
            try:
                if _content(value) != self._begun[name].get(attribute):
                    attributes[attribute] = value
            except Unsaveable as refused:
                if own and not _remembers_nothing(value, self._known):
                    self.unsaveable.add(f"{name}.{attribute} ({refused})")
        return {"attributes": attributes}

    def _attributes(self, callback: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in () if _has_state(callback) else vars(callback).items():
            with suppress(Unsaveable):
                found[name] = _content(value)
        return found


def _state_of(callback: Any, name: str) -> Any:
    state = callback.get_state()
    try:
        pack(state, [])
    except Unsaveable as refused:
        raise UserError(
            f"What get_state() of the callback {name} returns cannot be saved.",
            expected="numbers, texts, arrays, and lists and dicts of them",
            received=str(refused),
        ) from None
    return state


def _has_state(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _names(callbacks: list[Any]) -> list[str]:
    """Return the name of each callback's class; for the second of one class with a number."""
    counted: Counter[str] = Counter()
    names = []
    for callback in callbacks:
        name = type(callback).__name__
        counted[name] += 1
        names.append(name if counted[name] == 1 else f"{name} {counted[name]}")
    return names
