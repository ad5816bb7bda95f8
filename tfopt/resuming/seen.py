"""What a callback's attribute holds, as something that can be compared with what it holds later.

Guarantees: a variable is found in whatever of Keras's has it (a metric, a layer, an optimizer), and
what the trained model has anyway is left to that. An object that can be called is looked into: a
schedule may count in itself. Functions, classes and Keras's own losses and schedules remember
nothing; what a function's closure or a module has is not looked into.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tfopt.resuming.encoding import Unsaveable, pack
from tfopt.resuming.kept import attributes_of, is_ones_own, kept_by, kept_in
from tfopt.resuming.variables import values_of

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
