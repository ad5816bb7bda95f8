"""List the variables that a training changes, and read and write their values on each replica.

These are the model's weights, seeds and metrics, its optimizers' slots, and untracked variables of
constraints and layers, in a reproducible order. Variables that training would create in its first
step are created before, or refused. Here too: the random state of Python and NumPy.

Untracked variables and optimizers are looked for in a layer's attributes, also in lists, tuples,
dicts, optimizers and schedules, and objects of classes outside Keras, TensorFlow and Python; not in
sets, which have no order, slots, classes, and layers that Keras does not track.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from tfopt.errors import UserError, first_line
from tfopt.keras_internals import (
    build_by_shapes,
    layers_inside,
    layers_of,
    tracked_lists,
)

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), np.ndarray})
_LIBRARIES = sys.stdlib_module_names | {"keras", "numpy", "tensorflow"}


@dataclass(frozen=True)
class NamedVariable:
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


def variables_of(model: Any) -> list[NamedVariable]:
    """Return every variable of a built and compiled model, once."""
    variables: dict[int, NamedVariable] = {}
    for named in _all_variables(model):
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


def _all_variables(model: Any) -> Iterator[NamedVariable]:
    import keras

    untracked = list(untracked_in(model))
    optimizers = [item for _, _, item in untracked if isinstance(item, keras.optimizers.Optimizer)]
    for variable in model.variables:
        trained = bool(variable.trainable)
        yield NamedVariable(variable.path, trained, variable.value, is_shared=trained)
    for optimizer in (model.optimizer, *optimizers):
        for variable in () if optimizer is None else optimizer.variables:
            yield NamedVariable(variable.path, False, variable.value, is_shared=True)
    # A model leaves out the metrics of a compiled model inside it.
    inside = layers_inside(model)
    compiled = [layer for layer in inside if isinstance(layer, keras.Model) and layer.compiled]
    for part in (model, *compiled):
        for variable in part.metrics_variables:
            yield NamedVariable(variable.path, False, variable.value, is_shared=False)
    for variable in model.trainable_variables:
        constraint = getattr(variable, "constraint", None)
        for path, item in untracked_values(constraint, "constraint"):
            yield from _untracked(item, f"{variable.path}/{path}")
    for layer, path, item in untracked:
        yield from _untracked(item, f"{layer.name}/{path}")


def _untracked(item: Any, name: str) -> Iterator[NamedVariable]:
    import keras

    if isinstance(item, keras.optimizers.Optimizer):
        return
    variable = item.value if isinstance(item, keras.Variable) else item
    yield NamedVariable(f"{name}/{item.name.split(':')[0]}", False, variable, is_shared=False)


def build_all(model: Any, element_spec: Any) -> None:
    """Create the variables that training would create in its first step, by the data's shapes.

    It draws only the random numbers that training would draw, and reads no batch.
    """
    try:
        build_by_shapes(model, element_spec)
    except Exception as error:
        raise UserError(
            f"{type(model).__name__} cannot be built from the shapes of its data.",
            expected="a model whose variables can be created before its first step",
            received=f"{type(error).__name__}: {first_line(error)}",
            fix="call it on a batch first; with a custom train_step and no call(), build its "
            "layers and set model.built = True",
        ) from error


def require_no_new_variables(model: Any, begun: list[NamedVariable]) -> None:
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


def untracked_in(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield (layer, path in the layer, variable or optimizer), in an order that is reproducible."""
    seen: set[int] = set()
    for layer in layers_of(model):
        trackers = _of_keras(layer)
        for name, value in vars(layer).items():
            if id(value) not in trackers:
                for path, item in untracked_values(value, name, seen):
                    yield layer, path, item


def untracked_values(
    value: Any, name: str, seen: set[int] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield (path, variable or optimizer) of a value, without those ``seen`` before."""
    import keras
    import tensorflow as tf

    seen = set() if seen is None else seen
    kinds = tf.Variable | keras.Variable | keras.optimizers.Optimizer
    # Without recursion: nested objects may be deeper than Python's stack.
    pending: list[tuple[str, Any]] = [(name, value)]
    while pending:
        path, value = pending.pop()
        if type(value) in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tf.random.Generator | keras.random.SeedGenerator):
            value = value.state
        if isinstance(value, kinds):
            yield path, value
            if not isinstance(value, keras.optimizers.Optimizer):
                continue
        parts = [(path + key, part) for key, part in _parts_of(value) if type(part) not in _PLAIN]
        pending += reversed(parts)


def _parts_of(value: Any) -> Iterable[tuple[str, Any]]:
    import keras

    kinds = keras.constraints.Constraint | keras.optimizers.Optimizer
    if isinstance(value, keras.Layer):
        return []
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{number}]", part) for number, part in enumerate(value)]
    if isinstance(value, keras.Metric):
        return [(f".{variable.name}", variable) for variable in value.variables]
    if isinstance(value, kinds) or _is_custom(value):
        # Without TensorFlow's attributes.
        return [(f".{name}", part) for name, part in vars(value).items() if name[:6] != "_self_"]
    return []


def _is_custom(value: Any) -> bool:
    if isinstance(value, type | ModuleType) or not hasattr(value, "__dict__"):
        return False
    return type(value).__module__.partition(".")[0] not in _LIBRARIES


def _of_keras(layer: Any) -> set[int]:
    """Return the ids of the lists in which Keras and TensorFlow track a layer's attributes."""
    tracked = tracked_lists(layer)
    names = ("_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names")
    tracked += [getattr(layer, name) for name in names if hasattr(layer, name)]
    return set(map(id, tracked))


def capture_host() -> dict[str, Any]:
    """Return the states of Python and NumPy."""
    version, numbers, gauss = random.getstate()
    python = [version, np.asarray(numbers, np.uint32), gauss]
    return {"python": python, "numpy": np.random.get_state(legacy=False)}


def restore_host(state: dict[str, Any]) -> None:
    """Restore the states of Python and NumPy."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    np.random.set_state(state["numpy"])
