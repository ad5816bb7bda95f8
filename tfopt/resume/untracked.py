"""Find the variables and optimizers that a model's objects keep besides what Keras tracks.

Every attribute is looked into, with its lists, tuples, dicts, optimizers and schedules, and the
objects in them whose classes are not Keras's, TensorFlow's or Python's own. Not looked into are
sets, which have no order, slots, classes, and layers that Keras does not track.
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


def kept_by(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield (layer, path in the layer, variable or optimizer), each thing once.

    The order is the same in each process that runs the same script.
    """
    seen: set[int] = set()
    for layer in layers_of(model):
        trackers = _of_keras(layer)
        for name, value in vars(layer).items():
            if id(value) not in trackers:
                for where, thing in kept_in(value, name, seen):
                    yield layer, where, thing


def kept_in(value: Any, name: str, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield (path, variable or optimizer) of a value; what is ``seen`` is passed over."""
    import keras
    import tensorflow as tf

    seen = set() if seen is None else seen
    things = tf.Variable | keras.Variable | keras.optimizers.Optimizer
    # No recursion: a list of lists, or objects in a chain, may be deeper than Python's own stack.
    left: list[tuple[str, Any]] = [(name, value)]
    while left:
        path, value = left.pop()
        if type(value) in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tf.random.Generator | keras.random.SeedGenerator):
            value = value.state
        if isinstance(value, things):
            yield path, value
            if not isinstance(value, keras.optimizers.Optimizer):
                continue
        parts = [(step, each) for step, each in _parts_of(value) if type(each) not in _PLAIN]
        left += reversed([(path + step, each) for step, each in parts])


def _parts_of(value: Any) -> Iterable[tuple[str, Any]]:
    import keras

    kinds = keras.constraints.Constraint | keras.optimizers.Optimizer
    if isinstance(value, keras.Layer):
        return []
    if isinstance(value, dict):
        return [(f"[{key!r}]", each) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{number}]", each) for number, each in enumerate(value)]
    if isinstance(value, keras.Metric):
        return [(f".{each.name}", each) for each in value.variables]
    if isinstance(value, kinds) or _is_ones_own(value):
        # Without what TensorFlow notes.
        return [(f".{name}", each) for name, each in vars(value).items() if name[:6] != "_self_"]
    return []


def _is_ones_own(value: Any) -> bool:
    if isinstance(value, type | ModuleType) or not hasattr(value, "__dict__"):
        return False
    return type(value).__module__.partition(".")[0] not in _LIBRARIES


def _of_keras(layer: Any) -> set[int]:
    """Return the ids of the lists in which Keras and TensorFlow track a layer's attributes."""
    tracked = tracked_lists(layer)
    # A name may stand there for what was replaced, and in another order.
    names = ("_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names")
    tracked += [getattr(layer, name) for name in names if hasattr(layer, name)]
    return {id(each) for each in tracked}
