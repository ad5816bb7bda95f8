"""Find the variables and optimizers in a model's attributes that Keras does not track.

The search includes lists, tuples, dicts, optimizers and schedules, and objects of classes outside
Keras, TensorFlow and Python. It excludes sets, which have no order, slots, classes, and layers that
Keras does not track.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from tfopt.keras_internals import layers_of, tracked_lists

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), np.ndarray})
_LIBRARIES = sys.stdlib_module_names | {"keras", "numpy", "tensorflow"}


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
