"""What the other callbacks of a training remember: its history, the best loss so far, a count.

Guarantees: only what changes while it trains is kept, so that a setting in the script is never
overridden by a checkpoint; what cannot be kept is named. Variables, also those of a metric or layer
of its own, stay the ones that the callback has, and get their values. A callback with
``get_state()`` and ``set_state(state)`` is asked, and its attributes are left alone.
"""

from __future__ import annotations

import functools
import types
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from tfopt.errors import UserError
from tfopt.resume.store import Unsaveable, pack
from tfopt.resume.training_state import (
    attributes_of,
    is_ones_own,
    kept_by,
    kept_in,
    put_back,
    values_of,
)

# What a callback's attribute holds, as something that can be compared with what it holds later.
#
# Guarantees: a variable is found in whatever of Keras's has it (a metric, a layer, an optimizer),
# and what the trained model has anyway is left to that. An object that can be called is looked
# into: a schedule may count in itself. Functions, classes and Keras's own losses and schedules
# remember nothing; what a function's closure or a module has is not looked into.

# In place of what the trained model has anyway.
OF_THE_MODEL = "of the model"
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    functools.partial,
    type,
)
# An object behind which there is more than this is not followed.
_MOST = 1000


@dataclass(frozen=True)
class Opaque:
    """A value that cannot be packed, by its type."""

    kind: str
    inside: Any
    """What is in it, () where it remembers nothing, None where nobody can look into it."""

    def is_unknown(self) -> bool:
        return self.inside is None or any(
            isinstance(each, Opaque) and each.is_unknown() for each in self.inside
        )

    def remembers_nothing(self) -> bool:
        return self.inside is not None and all(
            each == OF_THE_MODEL or (isinstance(each, Opaque) and each.remembers_nothing())
            for each in self.inside
        )


@dataclass(frozen=True)
class Held:
    """Variables, or a list or dict of nothing else, by their shapes and what is in them."""

    forms: list[Any]
    content: list[Any]


def seen(value: Any, known: frozenset[int]) -> Any:
    """A value, without the variables that are ``known`` by their ids."""
    return _seen(value, known, set())


def variables_in(value: Any, known: frozenset[int]) -> list[Any] | None:
    """The variables of a value that is nothing else; None where it is, or has, something else."""
    found = _all_variables(value)
    return None if found is None else [each for each in found if id(each) not in known]


def form_of(values: list[Any]) -> list[Any]:
    """What must be the same for values to be given to a variable."""
    return [values[0].dtype.name, list(values[0].shape)]


def _seen(value: Any, known: frozenset[int], above: set[int]) -> Any:
    every = _all_variables(value)
    if every is not None:
        values = [values_of(each) for each in every if id(each) not in known]
        if every and not values:
            return OF_THE_MODEL
        return Held([form_of(each) for each in values], [[_digest(v) for v in e] for e in values])
    arrays: list[Any] = []
    try:
        packed = pack(value, arrays)
    except Unsaveable as refused:
        return Opaque(str(refused), _inside(value, known, above))
    # A dataset that an object has is not gone through whole at each checkpoint.
    some = some_of if above else _digest
    return packed, [(each.dtype.name, each.shape, some(each)) for each in arrays]


def _inside(value: Any, known: frozenset[int], above: set[int]) -> Any:
    import keras

    if isinstance(value, types.MethodType):
        value = value.__self__
    # What callbacks remember is kept as their own.
    nothing = (*_FUNCTIONS, keras.callbacks.Callback)
    if isinstance(value, nothing) or id(value) in above or _is_of_keras(value):
        return ()
    if type(value) in (list, tuple):
        parts = list(value)
    elif type(value) is dict:
        parts = [*value, *value.values()]
    elif is_ones_own(value) and not isinstance(value, list | tuple | dict | set):
        attributes = attributes_of(value)
        parts = [*attributes, *attributes.values()]
    else:
        # Of the libraries', what can be called keeps nothing else in itself.
        return () if callable(value) else None
    above.add(id(value))
    if len(above) > _MOST:
        return None
    return tuple(_seen(each, known, above) for each in parts)


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


def some_of(array: Any) -> bytes:
    """What tells one array from another, by some of what is in it where that is much."""
    flat = array.reshape(-1)
    return _digest(flat[:: max(flat.size // _MOST, 1)])


def _is_of_keras(value: Any) -> bool:
    """A model or a layer behind one of its methods: what it has are variables."""
    import keras

    return isinstance(value, keras.Layer | keras.Metric | keras.optimizers.Optimizer)


# Plain numbers that a model keeps in its attributes, and changes while it trains.
#
# Guarantees: what is named has changed while the training went on, and is in no checkpoint: a
# count in a Python integer, a NumPy generator, a list of numbers, of a layer or an optimizer of
# the user's own class or of an object that it holds. What is only counted when a step is traced
# is not named: it is traced again when a training goes on.

_OF_FIT = frozenset({"stop_training", "_initial_epoch", "history", "built"})
_DEEP = 3


class Counts:
    """The numbers of a model as they were when this was made."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before = self._read()

    def changed(self) -> list[str]:
        """The names of those that are others now; each is told once."""
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
    """What tfopt itself holds on a model is kept in variables, or made anew."""
    return is_ones_own(value) and not type(value).__module__.startswith("tfopt.")


def _numbers(value: Any) -> Any:
    """What can be compared later; None of what is no number, nor made of numbers."""
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
    return packed, [(each.shape, some_of(each)) for each in arrays]


# Keras's own: which model it is, and what fit() was asked.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})


class Memory:
    """Reads and puts back what callbacks remember. Made when each has begun its training."""

    def __init__(self, callbacks: list[Any], known: frozenset[int] = frozenset()) -> None:
        """``known`` are the ids of the variables that a checkpoint holds in any case."""
        self._known = known
        self._callbacks = dict(zip(_names(callbacks), callbacks, strict=True))
        self._begun = {name: self._attributes(each) for name, each in self._callbacks.items()}
        self.unsaveable: set[str] = set()

    def read(self) -> dict[str, Any]:
        """By each callback's name, what has changed in it since it began."""
        return {name: self._read_one(name, each) for name, each in self._callbacks.items()}

    def put_back(self, state: dict[str, Any]) -> list[str]:
        """Puts back what was read; names what nobody here takes up."""
        left = []
        for name, remembered in state.items():
            callback = self._callbacks.get(name)
            if callback is None or ("told" in remembered) != _tells(callback):
                left += [name] if any(remembered.values()) else []
                continue
            if _tells(callback):
                callback.set_state(remembered["told"])
                continue
            for attribute, value in remembered["attributes"].items():
                # It may be put back twice, and changed in place in between.
                setattr(callback, attribute, deepcopy(value))
            for attribute, values in remembered["variables"].items():
                variables = variables_in(vars(callback).get(attribute), self._known) or []
                forms = [form_of(values_of(each)) for each in variables]
                if forms != [form_of(each) for each in values]:
                    left.append(f"{name}.{attribute}")
                    continue
                for variable, each in zip(variables, values, strict=True):
                    put_back(variable, each)
        return left

    def _read_one(self, name: str, callback: Any) -> dict[str, Any]:
        if _tells(callback):
            return {"told": _told_by(callback, name)}
        attributes, variables = {}, {}
        begun = self._begun[name]
        for attribute, value in vars(callback).items():
            if attribute in _NOT_STATE:
                continue
            now, before = seen(value, self._known), begun.get(attribute)
            if isinstance(now, Opaque):
                own = type(callback).__module__.split(".")[0] != "keras"
                if _tells_of(value, now, before, own):
                    self.unsaveable.add(f"{name}.{attribute} ({now.kind})")
            elif isinstance(now, Held):
                if not isinstance(before, Held) or now.forms != before.forms:
                    # When a training goes on, they are not there yet to be given their values.
                    made = f"{name}.{attribute} (a variable made while it trains)"
                    self.unsaveable.add(made)
                elif now != before:
                    held = variables_in(value, self._known) or []
                    variables[attribute] = [values_of(each) for each in held]
            elif now != before and now != OF_THE_MODEL:
                attributes[attribute] = value
        return {"attributes": attributes, "variables": variables}

    def _attributes(self, callback: Any) -> dict[str, Any]:
        if _tells(callback):
            return {}
        return {name: seen(value, self._known) for name, value in vars(callback).items()}


def _tells_of(value: Any, now: Opaque, before: Any, own: bool) -> bool:
    """Whether it has to be told that this value is in no checkpoint.

    An object may change inside, unseen. What Keras's own callbacks keep of that sort are writers
    and files, and what can be called and remembers nothing needs no place.
    """
    if callable(value):
        return now.is_unknown() or (isinstance(before, Opaque) and before.inside != now.inside)
    return own and not now.remembers_nothing()


def _told_by(callback: Any, name: str) -> Any:
    told = callback.get_state()
    try:
        pack(told, [])
    except Unsaveable as refused:
        raise UserError(
            f"What get_state() of the callback {name} returns cannot be saved.",
            expected="numbers, texts, arrays, and lists and dicts of them",
            received=str(refused),
        ) from None
    return told


def _tells(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(
        getattr(callback, "set_state", None)
    )


def _names(callbacks: list[Any]) -> list[str]:
    """Each by its class; the second of one class with a number."""
    seen: Counter[str] = Counter()
    names = []
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return names
