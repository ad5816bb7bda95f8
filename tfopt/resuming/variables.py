"""All variables that a training changes, and their values as they are, replica by replica.

Guarantees: the model's weights, seeds and metrics, its optimizers' slots, and what constraints and
layers keep in variables of TensorFlow's own (the masks and clusters that ``tfopt`` holds among
them), each once and in an order that is the same in each process that runs the same script. Under a
strategy every replica gets back its own value: a metric's running sum is another on each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


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

    optimizers = [model.optimizer, *vars(model).values()]
    for variable in model.variables:
        trained = bool(variable.trainable)
        yield Named(variable.path, trained, variable.value, alike=trained)
    for optimizer in optimizers:
        if isinstance(optimizer, keras.optimizers.Optimizer):
            for variable in optimizer.variables:
                yield Named(variable.path, False, variable.value, alike=True)
    for variable in model.metrics_variables:
        yield Named(variable.path, False, variable.value, alike=False)
    for variable in model.trainable_variables:
        constraint = getattr(variable, "constraint", None)
        yield from _kept_in(constraint, f"{variable.path}/constraint", set())
    for layer in model._flatten_layers():
        for name, value in vars(layer).items():
            if not name.startswith("_"):  # Keras's own lists are among these
                yield from _kept_in(value, f"{layer.name}/{name}", set())


def _kept_in(value: Any, name: str, seen: set[int]) -> Iterator[Named]:
    """Variables of TensorFlow's in a value, its containers, and objects of the same package."""
    import keras
    import tensorflow as tf

    if isinstance(value, tf.random.Generator):
        value = value.state
    if isinstance(value, tf.Variable):
        yield Named(f"{name}/{value.name.split(':')[0]}", False, value, alike=False)
        return
    if id(value) in seen or isinstance(value, keras.Variable | keras.Layer):
        return
    seen.add(id(value))
    if isinstance(value, dict):
        children = list(value.values())
    elif isinstance(value, list | tuple):
        children = list(value)
    elif type(value).__module__.split(".")[0] == "tfopt":
        children = list(vars(value).values()) if hasattr(value, "__dict__") else []
    elif isinstance(value, keras.constraints.Constraint):
        children = list(vars(value).values())
    else:
        return
    for child in children:
        yield from _kept_in(child, name, seen)
