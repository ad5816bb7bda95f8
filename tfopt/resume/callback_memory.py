"""Remember what the other callbacks of a training keep: its history, the best loss, a count.

Only what changes while it trains is kept, so that a checkpoint never overrides a setting in the
script; what cannot be kept is named. A variable stays the one that the callback has, and gets its
value. A callback with ``get_state()`` and ``set_state(state)`` is asked in place of its attributes.

An object that can be called is looked into: a schedule may count in itself. Functions, classes and
Keras's own losses and schedules remember nothing.
"""

from __future__ import annotations

import functools
import types
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.packing import Unsaveable, pack
from tfopt.resume.untracked import attributes_of, is_ones_own, kept_by, kept_in
from tfopt.resume.variables import put_back, values_of

# In place of what the trained model has anyway.
_OF_THE_MODEL = "of the model"
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    functools.partial,
    type,
)
# An object that leads to more objects than this is not followed.
_MOST = 1000


@dataclass(frozen=True)
class _Opaque:
    """A value that cannot be packed, by its type."""

    kind: str
    inside: Any
    """What is in it, () where it remembers nothing, None where nobody can look into it."""

    def is_unknown(self) -> bool:
        return self.inside is None or any(
            isinstance(each, _Opaque) and each.is_unknown() for each in self.inside
        )

    def remembers_nothing(self) -> bool:
        return self.inside is not None and all(
            each == _OF_THE_MODEL or (isinstance(each, _Opaque) and each.remembers_nothing())
            for each in self.inside
        )


@dataclass(frozen=True)
class _Held:
    """Variables, or a list or dict of nothing else, by their shapes and what is in them."""

    forms: list[Any]
    content: list[Any]


def _content(value: Any, known: frozenset[int], above: set[int]) -> Any:
    """Return what is in a value, without the variables ``known`` by their ids, to be compared."""
    every = _all_variables(value)
    if every is not None:
        values = [values_of(each) for each in every if id(each) not in known]
        if every and not values:
            return _OF_THE_MODEL
        return _Held([_form_of(each) for each in values], [[_digest(v) for v in e] for e in values])
    arrays: list[Any] = []
    try:
        packed = pack(value, arrays)
    except Unsaveable as refused:
        return _Opaque(str(refused), _inside(value, known, above))
    # A dataset that an object has is not gone through whole at each checkpoint.
    digest = sample_digest if above else _digest
    return packed, [(each.dtype.name, each.shape, digest(each)) for each in arrays]


def _inside(value: Any, known: frozenset[int], above: set[int]) -> Any:
    import keras

    if isinstance(value, types.MethodType):
        value = value.__self__
    # What callbacks remember is kept as their own, what a model or a layer has are variables.
    of_keras = (keras.callbacks.Callback, keras.Layer, keras.Metric, keras.optimizers.Optimizer)
    if isinstance(value, (*_FUNCTIONS, *of_keras)) or id(value) in above:
        return ()
    if type(value) in (list, tuple):
        parts = list(value)
    elif type(value) is dict:
        parts = [*value, *value.values()]
    elif is_ones_own(value) and not isinstance(value, list | tuple | dict | set):
        attributes = attributes_of(value)
        parts = [*attributes, *attributes.values()]
    else:
        # What the libraries have that can be called keeps nothing else in itself.
        return () if callable(value) else None
    above.add(id(value))
    if len(above) > _MOST:
        return None
    return tuple(_content(each, known, above) for each in parts)


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


def sample_digest(array: Any) -> bytes:
    """Return a digest of an array, of a thousand of its numbers where there are more."""
    flat = array.reshape(-1)
    return _digest(flat[:: max(flat.size // _MOST, 1)])


# Keras's own: which model it is, and what fit() was asked.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})


class Memory:
    """What callbacks remember, to be read and put back; made when each has begun its training."""

    def __init__(self, callbacks: list[Any], known: frozenset[int] = frozenset()) -> None:
        """``known`` are the ids of the variables that a checkpoint holds in any case."""
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
        for attribute, value in vars(callback).items():
            if attribute in _NOT_STATE:
                continue
            now, before = _content(value, self._known, set()), begun.get(attribute)
            if isinstance(now, _Opaque):
                own = type(callback).__module__.split(".")[0] != "keras"
                if _may_have_changed(value, now, before, own):
                    self.unsaveable.add(f"{name}.{attribute} ({now.kind})")
            elif isinstance(now, _Held):
                if not isinstance(before, _Held) or now.forms != before.forms:
                    # When a training goes on, they are not there yet to be given their values.
                    self.unsaveable.add(f"{name}.{attribute} (a variable made while it trains)")
                elif now != before:
                    variables[attribute] = [values_of(each) for each in self._variables_in(value)]
            elif now not in (before, _OF_THE_MODEL):
                attributes[attribute] = value
        return {"attributes": attributes, "variables": variables}

    def _attributes(self, callback: Any) -> dict[str, Any]:
        if _has_state(callback):
            return {}
        return {name: _content(value, self._known, set()) for name, value in vars(callback).items()}


def _may_have_changed(value: Any, now: _Opaque, before: Any, own: bool) -> bool:
    """Return whether a value in no checkpoint may have changed: an object may do so unseen.

    What Keras's own callbacks keep of that sort are writers and files, and what can be called and
    remembers nothing needs no place.
    """
    if callable(value):
        return now.is_unknown() or (isinstance(before, _Opaque) and before.inside != now.inside)
    return own and not now.remembers_nothing()


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
