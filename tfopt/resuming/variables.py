"""All variables that a training changes, and their values as they are, replica by replica.

Guarantees: the model's weights, seeds and metrics, the slots of each optimizer that it or a model
in it has, also in a list or a dict, and what constraints and layers keep in variables of
TensorFlow's own (the masks and clusters that ``tfopt`` holds among them), each once and in an order
that is the same in each process that runs the same script. Under a strategy every replica gets back
its own value: a metric's running sum is another on each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfopt.resuming.kept import kept_by, kept_in


@dataclass(frozen=True)
class Named:
    """A variable of TensorFlow's, under the name that a message calls it by."""

    name: str
    trainable: bool
    variable: Any
    alike: bool
    """Whether it is the same on every worker: weights that are trained, and what trains them."""

    @property
    def facts(self) -> list[Any]:
        """What must be the same for a value to be put back; without the numbers in its name:
        Keras counts layers through a process."""
        short = re.sub(r"_\d+", "", self.name.rsplit("/", 1)[-1])
        return [short, list(self.variable.shape), self.variable.dtype.name]


def variables_of(model: Any) -> list[Named]:
    """Every variable of a model that is built and compiled."""
    found: dict[int, Named] = {}
    for named in _every(model):
        found.setdefault(id(named.variable), named)
    return list(found.values())


def values_of(variable: Any) -> list[Any]:
    """One value, or one of each replica where they are not the same."""
    values = [np.asarray(part.numpy()) for part in parts_of(variable)]
    first = values[0].tobytes()
    return values[:1] if all(each.tobytes() == first for each in values) else values


def put_back(variable: Any, values: list[Any]) -> None:
    """Gives a variable the values that ``values_of`` read."""
    parts = parts_of(variable)
    for part, value in zip(parts, values * len(parts) if len(values) == 1 else values, strict=True):
        part.assign(value)


def own_values(variables: list[Named], values: list[Any]) -> list[Any]:
    """Without those that are the same on every worker."""
    return [None if n.alike else value for n, value in zip(variables, values, strict=True)]


def parts_of(variable: Any) -> list[Any]:
    """The variables of this process's replicas."""
    import tensorflow as tf

    if isinstance(variable, tf.distribute.DistributedValues):
        return list(variable.values)
    return [variable]


def _every(model: Any) -> Iterator[Named]:
    import keras

    kept = list(kept_by(model))
    found = [thing for _, _, thing in kept if isinstance(thing, keras.optimizers.Optimizer)]
    for variable in model.variables:
        trained = bool(variable.trainable)
        yield Named(variable.path, trained, variable.value, alike=trained)
    for optimizer in (model.optimizer, *found):
        for variable in () if optimizer is None else optimizer.variables:
            yield Named(variable.path, False, variable.value, alike=True)
    # A model that is a layer of this one has metrics of its own, which this one leaves alone.
    inner = [each for each in model._flatten_layers(include_self=False) if _is_compiled(each)]
    for each in (model, *inner):
        for variable in each.metrics_variables:
            yield Named(variable.path, False, variable.value, alike=False)
    for variable in model.trainable_variables:
        constraint = getattr(variable, "constraint", None)
        for where, thing in kept_in(constraint, "constraint"):
            yield from _named(thing, f"{variable.path}/{where}")
    for layer, where, thing in kept:
        yield from _named(thing, f"{layer.name}/{where}")


def _is_compiled(layer: Any) -> bool:
    import keras

    return isinstance(layer, keras.Model) and bool(layer.compiled)


def _named(thing: Any, name: str) -> Iterator[Named]:
    import keras

    if isinstance(thing, keras.optimizers.Optimizer):
        return
    variable = thing.value if isinstance(thing, keras.Variable) else thing
    yield Named(f"{name}/{thing.name.split(':')[0]}", False, variable, alike=False)
