"""List the variables that a training changes, and read and write their values on each replica.

These are the model's weights, seeds and metrics, its optimizers' slots, and untracked variables of
constraints and layers, in a reproducible order. Variables that training would create in its first
step are created before, or refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfopt.errors import UserError
from tfopt.keras_internals import build_by_shapes, dataset_of, layers_inside
from tfopt.resume.untracked import untracked_in, untracked_values


@dataclass(frozen=True)
class Named:
    """A TensorFlow variable with its name in messages."""

    name: str
    trainable: bool
    variable: Any
    is_shared: bool
    """Whether it is equal on every worker, as trained weights and optimizers are."""

    @property
    def facts(self) -> list[Any]:
        """Return what must be equal to restore a value."""
        # Without the numbers that Keras adds to names.
        short = re.sub(r"_\d+", "", self.name.rsplit("/", 1)[-1])
        return [short, list(self.variable.shape), self.variable.dtype.name]


def variables_of(model: Any) -> list[Named]:
    """Return every variable of a built and compiled model, once."""
    variables: dict[int, Named] = {}
    for named in _every(model):
        variables.setdefault(id(named.variable), named)
    return list(variables.values())


def values_of(variable: Any) -> list[Any]:
    """Return one value, or that of each replica if they differ."""
    values = [np.asarray(part.numpy()) for part in _replicas_of(variable)]
    first = values[0].tobytes()
    return values[:1] if all(value.tobytes() == first for value in values) else values


def restore_values(variable: Any, values: list[Any]) -> None:
    """Assign the result of ``values_of`` to a variable."""
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

    untracked = list(untracked_in(model))
    optimizers = [item for _, _, item in untracked if isinstance(item, keras.optimizers.Optimizer)]
    for variable in model.variables:
        trained = bool(variable.trainable)
        yield Named(variable.path, trained, variable.value, is_shared=trained)
    for optimizer in (model.optimizer, *optimizers):
        for variable in () if optimizer is None else optimizer.variables:
            yield Named(variable.path, False, variable.value, is_shared=True)
    # A model leaves out the metrics of a compiled model inside it.
    inside = layers_inside(model)
    compiled = [layer for layer in inside if isinstance(layer, keras.Model) and layer.compiled]
    for part in (model, *compiled):
        for variable in part.metrics_variables:
            yield Named(variable.path, False, variable.value, is_shared=False)
    for variable in model.trainable_variables:
        constraint = getattr(variable, "constraint", None)
        for path, item in untracked_values(constraint, "constraint"):
            yield from _untracked(item, f"{variable.path}/{path}")
    for layer, path, item in untracked:
        yield from _untracked(item, f"{layer.name}/{path}")


def _untracked(item: Any, name: str) -> Iterator[Named]:
    import keras

    if isinstance(item, keras.optimizers.Optimizer):
        return
    variable = item.value if isinstance(item, keras.Variable) else item
    yield Named(f"{name}/{item.name.split(':')[0]}", False, variable, is_shared=False)


def build_all(model: Any, epoch_iterator: Any) -> None:
    """Create the variables that training would create in its first step, by the data's shapes.

    It draws only the random numbers that training would draw, and reads no batch.
    """
    try:
        build_by_shapes(model, dataset_of(epoch_iterator).element_spec)
    except Exception as error:
        raise UserError(
            f"{type(model).__name__} cannot be built from the shapes of its data, which resume() "
            "needs to restore all variables.",
            expected="a model that is built before fit()",
            received=f"{type(error).__name__}: {error}".splitlines()[0],
            fix="call it on a batch first; with a custom train_step and no call(), build its "
            "layers and set model.built = True",
        ) from error


def require_no_new_variables(model: Any, begun: list[Named]) -> None:
    """Refuse variables that the first step has created, which could not be restored."""
    known = {id(named.variable) for named in begun}
    new = [named.name for named in variables_of(model) if id(named.variable) not in known]
    if new:
        shown = ", ".join(new[:3]) + (f" and {len(new) - 3} more" if len(new) > 3 else "")
        raise UserError(
            f"The first step of {type(model).__name__} created {shown}, which cannot be restored.",
            expected="all variables and optimizers created and built before fit()",
            fix="create them before fit(); build an optimizer by build(variables)",
        )
