"""What a model's own objects keep besides what Keras tracks: variables of TensorFlow's, optimizers.

Guarantees: every attribute is looked into, whatever it is called, with its lists, tuples and dicts,
optimizers with their schedules, namespaces, and the objects in them whose classes are not Keras's,
TensorFlow's or Python's own; each thing is found once, in an order that is the same in each process
that runs the same script. Not looked into are sets, which have no order, classes, and layers that
Keras does not track.
"""

from __future__ import annotations

import sys
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), np.ndarray})
_LIBRARIES = sys.stdlib_module_names | {"keras", "numpy", "tensorflow"}

# How to get to a value: the way to what holds it, and the last step from there.
_Way = tuple[Any, str] | None


def kept_by(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """Each variable and optimizer in a model's and its layers' attributes: whose, where, what."""
    seen: set[int] = set()
    for layer in model._flatten_layers():
        trackers = _of_keras(layer)
        for name, value in vars(layer).items():
            if id(value) not in trackers:
                for where, thing in kept_in(value, name, seen):
                    yield layer, where, thing


def kept_in(value: Any, name: str, seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Each variable and optimizer in a value, and where; what is ``seen`` is passed over."""
    import keras
    import tensorflow as tf

    seen = set() if seen is None else seen
    things = tf.Variable | keras.Variable | keras.optimizers.Optimizer
    # No recursion: a list of lists, or objects in a chain, may be deeper than Python's own stack.
    left: list[tuple[tuple[Any, str], Any]] = [((None, name), value)]
    while left:
        way, value = left.pop()
        if type(value) in _PLAIN or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, tf.random.Generator | keras.random.SeedGenerator):
            value = value.state
        if isinstance(value, things):
            yield _told(way), value
            if not isinstance(value, keras.optimizers.Optimizer):
                continue
        left += reversed([((way, step), each) for step, each in _within(value)])


def _within(value: Any) -> list[tuple[str, Any]]:
    """What a value is made of, without what can be nothing of interest."""
    import keras

    if isinstance(value, keras.Layer):
        return []
    parts: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        return [(f"[{key!r}]", each) for key, each in value.items() if type(each) not in _PLAIN]
    if isinstance(value, list | tuple | deque):
        parts = enumerate(value)
        return [(f"[{number}]", each) for number, each in parts if type(each) not in _PLAIN]
    if isinstance(value, keras.Metric):
        return [(f".{each.name}", each) for each in value.variables]
    kinds = keras.constraints.Constraint | keras.optimizers.Optimizer
    if isinstance(value, kinds) or is_ones_own(value):
        parts = attributes_of(value).items()
        return [(f".{name}", each) for name, each in parts if type(each) not in _PLAIN]
    return []


def is_ones_own(value: Any) -> bool:
    """Whether it is an object of the user's, or has nothing but what the user put there."""
    if isinstance(value, type | ModuleType):
        return False
    kind = type(value)
    plain = kind in (SimpleNamespace, UserDict, UserList)
    return (plain or kind.__module__.partition(".")[0] not in _LIBRARIES) and (
        hasattr(value, "__dict__") or any("__slots__" in vars(each) for each in kind.__mro__)
    )


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object has in its dict and in its slots, without what TensorFlow notes there."""
    slots = [slot for kind in type(value).__mro__ for slot in _slots_of(kind)]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    found |= getattr(value, "__dict__", {})
    return {name: each for name, each in found.items() if not name.startswith("_self_")}


def _slots_of(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    # As Python itself writes a name with two underscores.
    hidden = f"_{kind.__name__.lstrip('_')}"
    return [
        hidden + name if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    ]


def _of_keras(layer: Any) -> set[int]:
    """The lists in which Keras and TensorFlow track what a layer's attributes have anyway."""
    tracked = [store for _, store in layer._tracker.config.values()]
    # A name may stand there for what was replaced, and in another order.
    names = ("_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names")
    tracked += [getattr(layer, name) for name in names if hasattr(layer, name)]
    return {id(each) for each in tracked}


def _told(way: _Way) -> str:
    steps = []
    while way is not None:
        way, step = way
        steps.append(step)
    return "".join(reversed(steps))
