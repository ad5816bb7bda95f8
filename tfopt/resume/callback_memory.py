"""Remember what the other callbacks of a training keep: its history, the best loss, a count.

Only what changes while it trains is kept, so that a checkpoint never overrides a setting in the
script; what cannot be kept is named. A variable stays the one that the callback has, and gets its
value. A callback with ``get_state()`` and ``set_state(state)`` is asked in place of its attributes.

What can be called (functions, classes, layers, losses, schedules) remembers nothing.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from types import ModuleType
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.packing import Unsaveable, pack
from tfopt.resume.untracked import kept_by, kept_in
from tfopt.resume.variables import put_back, values_of

# In place of what the trained model has anyway.
_OF_THE_MODEL = "of the model"


@dataclass(frozen=True)
class _Held:
    """Variables, or a list or dict of nothing else, by their shapes and what is in them."""

    forms: list[Any]
    content: list[Any]


def _content(value: Any, known: frozenset[int]) -> Any:
    """Return what is in a value, without the variables ``known`` by their ids, to be compared."""
    every = _all_variables(value)
    if every is not None:
        values = [values_of(each) for each in every if id(each) not in known]
        if every and not values:
            return _OF_THE_MODEL
        return _Held([_form_of(each) for each in values], [[_digest(v) for v in e] for e in values])
    arrays: list[Any] = []
    packed = pack(value, arrays)
    return packed, [(each.dtype.name, each.shape, _digest(each)) for each in arrays]


def _remembers_nothing(value: Any) -> bool:
    import keras

    if type(value) in (list, tuple, dict):
        return all(map(_remembers_nothing, value.values() if isinstance(value, dict) else value))
    plain = value is None or isinstance(value, bool | int | float | str)
    of_keras = keras.callbacks.Callback | keras.optimizers.Optimizer
    return plain or callable(value) or isinstance(value, of_keras | ModuleType)


def _form_of(values: list[Any]) -> list[Any]:
    """Return what must be the same for values to be given to a variable."""
    return [values[0].dtype.name, list(values[0].shape)]


def _all_variables(value: Any) -> list[Any] | None:
    import keras
    import tensorflow as tf

    if isinstance(value, tf.random.Generator | keras.random.SeedGenerator):
        value = value.state
    if isinstance(value, keras.Variable):
        value = value.value
    if isinstance(value, tf.Variable):
        return [value]
    if isinstance(value, keras.Layer):
        return _each_once([*value.variables, *(thing for _, _, thing in kept_by(value))])
    if isinstance(value, keras.Metric):
        return _each_once(value.variables)
    if isinstance(value, keras.optimizers.Optimizer):
        return _each_once([*value.variables, *(thing for _, thing in kept_in(value, ""))])
    if not isinstance(value, dict | list | tuple) or not value:
        return None
    found = []
    for each in value.values() if isinstance(value, dict) else value:
        variables = _all_variables(each)
        if variables is None:
            return None
        found += variables
    return found


def _each_once(things: Any) -> list[Any]:
    import keras
    import tensorflow as tf

    values = [each.value if isinstance(each, keras.Variable) else each for each in things]
    return list({id(each): each for each in values if isinstance(each, tf.Variable)}.values())


def _digest(array: Any) -> bytes:
    return sha256(array.tobytes()).digest()


# Keras's own: which model it is, and what fit() was asked.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})


class Memory:
    """What callbacks remember, to be read and put back; made when each has begun its training."""

    def __init__(self, callbacks: list[Any], known: frozenset[int] = frozenset()) -> None:
        """Read the callbacks, without variables whose id is ``known``: a checkpoint holds them."""
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
                left += self._put_back_attributes(name, callback, remembered)
        return left

    def _put_back_attributes(self, name: str, callback: Any, remembered: Any) -> list[str]:
        for attribute, value in remembered["attributes"].items():
            # It may be put back twice, and changed in place in between.
            setattr(callback, attribute, deepcopy(value))
        left = []
        for attribute, values in remembered["variables"].items():
            variables = self._variables_in(vars(callback).get(attribute))
            forms = [_form_of(values_of(each)) for each in variables]
            if forms != [_form_of(each) for each in values]:
                left.append(f"{name}.{attribute}")
                continue
            for variable, each in zip(variables, values, strict=True):
                put_back(variable, each)
        return left

    def _variables_in(self, value: Any) -> list[Any]:
        return [each for each in _all_variables(value) or () if id(each) not in self._known]

    def _read_one(self, name: str, callback: Any) -> dict[str, Any]:
        if _has_state(callback):
            return {"told": _state_of(callback, name)}
        attributes, variables = {}, {}
        begun = self._begun[name]
        # What Keras's own callbacks keep that cannot be saved are writers and files.
        own = type(callback).__module__.split(".")[0] != "keras"
        for attribute, value in vars(callback).items():
            if attribute in _NOT_STATE:
                continue
            before = begun.get(attribute)
            try:
                now = _content(value, self._known)
            except Unsaveable as refused:
                if own and not _remembers_nothing(value):
                    self.unsaveable.add(f"{name}.{attribute} ({refused})")
                continue
            if isinstance(now, _Held):
                if not isinstance(before, _Held) or now.forms != before.forms:
                    # When a training goes on, they are not there yet to be given their values.
                    self.unsaveable.add(f"{name}.{attribute} (a variable made while it trains)")
                elif now != before:
                    variables[attribute] = [values_of(each) for each in self._variables_in(value)]
            elif now not in (before, _OF_THE_MODEL):
                attributes[attribute] = value
        return {"attributes": attributes, "variables": variables}

    def _attributes(self, callback: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in () if _has_state(callback) else vars(callback).items():
            with suppress(Unsaveable):
                found[name] = _content(value, self._known)
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
