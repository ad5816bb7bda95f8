"""What the other callbacks of a training remember: its history, the best loss so far, a count.

Guarantees: only what changes while it trains is kept, so that a setting in the script is never
overridden by a checkpoint; what cannot be kept is named. Variables stay the ones that the callback
has, and get their values. A callback with ``get_state()`` and ``set_state(state)`` is asked, and
its attributes are left alone.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tfopt.errors import UserError
from tfopt.resuming.encoding import Unsaveable, pack
from tfopt.resuming.variables import put_back, values_of

# Keras's own: which model it is, and what fit() was asked.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})


class Memory:
    """Reads and puts back what callbacks remember. Made when each has begun its training."""

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks = dict(zip(_names(callbacks), callbacks, strict=True))
        self._begun = {name: _attributes(each) for name, each in self._callbacks.items()}
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
                variables = _variables_in(vars(callback).get(attribute))
                if [_form(each) for each in variables] != [_form_of(each) for each in values]:
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
            seen, before = _seen(value), begun.get(attribute)
            if isinstance(seen, _Opaque):
                # An object may change inside, unseen. What Keras's own callbacks keep of that sort
                # are writers and files, and functions remember nothing.
                own = type(callback).__module__.split(".")[0] != "keras"
                if own and not callable(value):
                    self.unsaveable.add(f"{name}.{attribute} ({seen.kind})")
            elif isinstance(seen, _Held):
                if not isinstance(before, _Held) or seen.forms != before.forms:
                    # When a training goes on, they are not there yet to be given their values.
                    made = f"{name}.{attribute} (a variable made while it trains)"
                    self.unsaveable.add(made)
                elif seen != before:
                    variables[attribute] = [values_of(each) for each in _variables_in(value)]
            elif seen != before:
                attributes[attribute] = value
        return {"attributes": attributes, "variables": variables}


@dataclass(frozen=True)
class _Opaque:
    """A value that cannot be packed, by its type."""

    kind: str


@dataclass(frozen=True)
class _Held:
    """Variables, or a list or dict of nothing else, by their shapes and what is in them."""

    forms: list[Any]
    content: list[Any]


def _attributes(callback: Any) -> dict[str, Any]:
    return {} if _tells(callback) else {n: _seen(v) for n, v in vars(callback).items()}


def _seen(value: Any) -> Any:
    """A value as something that can be compared with a later one."""
    variables = _variables_in(value)
    if variables:
        content = [[each.tobytes() for each in values_of(variable)] for variable in variables]
        return _Held([_form(each) for each in variables], content)
    arrays: list[Any] = []
    try:
        packed = pack(value, arrays)
    except Unsaveable as refused:
        return _Opaque(str(refused))
    return packed, [(each.dtype.name, each.shape, each.tobytes()) for each in arrays]


def _variables_in(value: Any) -> list[Any]:
    """The variables that a value is, or that lists and dicts in it have; none where it has more."""
    import keras
    import tensorflow as tf

    if isinstance(value, tf.random.Generator | keras.random.SeedGenerator):
        value = value.state
    if isinstance(value, keras.Variable):
        value = value.value
    if isinstance(value, tf.Variable):
        return [value]
    if not isinstance(value, dict | list | tuple):
        return []
    found = [_variables_in(each) for each in (value.values() if isinstance(value, dict) else value)]
    return [each for one in found for each in one] if all(found) else []


def _form(variable: Any) -> list[Any]:
    return _form_of(values_of(variable))


def _form_of(values: list[Any]) -> list[Any]:
    return [values[0].dtype.name, list(values[0].shape)]


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
