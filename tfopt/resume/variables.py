"""List the variables that a training changes, and read and write their values on each replica.

These are the model's weights, seeds and metrics, its optimizers' slots, and what constraints and
layers keep in variables of TensorFlow's own, each once and in an order that is the same in each
process that runs the same script. What training would make at its first step is made before, or
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfopt.errors import UserError
from tfopt.keras_internals import build_by_shapes, dataset_of, layers_inside
from tfopt.resume.untracked import kept_by, kept_in


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
        """Return what must be the same for a value to be put back."""
        # Without the numbers in its name: Keras counts layers through a process.
        short = re.sub(r"_\d+", "", self.name.rsplit("/", 1)[-1])
        return [short, list(self.variable.shape), self.variable.dtype.name]


def variables_of(model: Any) -> list[Named]:
    """Return every variable of a model that is built and compiled."""
    found: dict[int, Named] = {}
    for named in _every(model):
        found.setdefault(id(named.variable), named)
    return list(found.values())


def values_of(variable: Any) -> list[Any]:
    """Return one value, or one of each replica where they are not the same."""
    values = [np.asarray(part.numpy()) for part in _replicas_of(variable)]
    first = values[0].tobytes()
    return values[:1] if all(each.tobytes() == first for each in values) else values


def put_back(variable: Any, values: list[Any]) -> None:
    """Give a variable the values that ``values_of`` read."""
    parts = _replicas_of(variable)
    for part, value in zip(parts, values * len(parts) if len(values) == 1 else values, strict=True):
        part.assign(value)


def _replicas_of(variable: Any) -> list[Any]:
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
    inner = layers_inside(model)
    compiled = [each for each in inner if isinstance(each, keras.Model) and each.compiled]
    for each in (model, *compiled):
        for variable in each.metrics_variables:
            yield Named(variable.path, False, variable.value, alike=False)
    for variable in model.trainable_variables:
        constraint = getattr(variable, "constraint", None)
        for where, thing in kept_in(constraint, "constraint"):
            yield from _untracked(thing, f"{variable.path}/{where}")
    for layer, where, thing in kept:
        yield from _untracked(thing, f"{layer.name}/{where}")


def _untracked(thing: Any, name: str) -> Iterator[Named]:
    import keras

    if isinstance(thing, keras.optimizers.Optimizer):
        return
    variable = thing.value if isinstance(thing, keras.Variable) else thing
    yield Named(f"{name}/{thing.name.split(':')[0]}", False, variable, alike=False)


def build_all(model: Any, epoch_iterator: Any) -> None:
    """Make the variables that training would make at its first step, from the data's shapes.

    Nothing is drawn from random state that training would not draw, and no batch is read.
    """
    try:
        build_by_shapes(model, dataset_of(epoch_iterator).element_spec)
    except Exception as error:
        raise UserError(
            f"{type(model).__name__} cannot be built from the shapes of its data: what it makes at "
            "its first step could not be put back.",
            expected="a model that is built before fit()",
            received=f"{type(error).__name__}: {error}".splitlines()[0],
            fix="call it on a batch first; with a train_step of its own and no call(), build its "
            "layers and set model.built = True",
        ) from error


def require_all_there(model: Any, begun: list[Named]) -> None:
    """Refuse, after the first step, what that one has made: it was not there to be put back."""
    there = {id(each.variable) for each in begun}
    more = [each.name for each in variables_of(model) if id(each.variable) not in there]
    if more:
        shown = ", ".join(more[:3]) + (f" and {len(more) - 3} more" if len(more) > 3 else "")
        raise UserError(
            f"The first step of {type(model).__name__} made {shown}, which a training that goes on "
            "could not put back.",
            expected="every variable and optimizer there, and built, before fit()",
            fix="make them before fit(); for an optimizer, build(the variables that it trains)",
        )
