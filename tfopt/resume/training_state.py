"""All variables that a training changes, and their values as they are, replica by replica.

Guarantees: the model's weights, seeds and metrics, the slots of each optimizer that it or a model
in it has, also in a list or a dict, and what constraints and layers keep in variables of
TensorFlow's own (the masks and clusters that ``tfopt`` holds among them), each once and in an order
that is the same in each process that runs the same script. Under a strategy every replica gets back
its own value: a metric's running sum is another on each.
"""

from __future__ import annotations

import random
import re
import sys
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tfopt.errors import UserError

# What a model's own objects keep besides what Keras tracks: variables of TensorFlow's,
# optimizers.
#
# Guarantees: every attribute is looked into, whatever it is called, with its lists, tuples and
# dicts, optimizers with their schedules, namespaces, and the objects in them whose classes are
# not Keras's, TensorFlow's or Python's own; each thing is found once, in an order that is the
# same in each process that runs the same script. Not looked into are sets, which have no order,
# classes, and layers that Keras does not track.

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


# The random state of a process: Python's, NumPy's, TensorFlow's and Keras's own.
#
# Guarantees: what was captured is put back exactly. What layers draw from is among the model's
# variables. Not here: the seed of an operation inside a compiled step (``tf.random.uniform``
# without a generator), whose state TensorFlow lets nobody read; ``keras.random`` has none of
# that.


def capture() -> dict[str, Any]:
    """All of it."""
    eager = _eager()
    drawn = None if eager is None else _as_state(eager)
    return {**capture_host(), "eager": drawn, "tf": _tf(), "keras": _keras()}


def restore(state: dict[str, Any]) -> None:
    """Puts all of it back."""
    import tensorflow as tf
    from keras.src.random.seed_generator import global_seed_generator

    eager = _eager()
    if eager is not None and state["eager"] is not None:
        eager.setstate(_from_state(state["eager"]))
    if state["tf"] is not None:
        # The drawing functions may hold the variable that there is: it stays the same one.
        put_back(tf.random.get_global_generator().state, state["tf"])
    if state["keras"] is not None:
        put_back(global_seed_generator().state.value, state["keras"])
    # Last: Keras draws a seed from Python's where it makes that generator just now.
    restore_host(state)


def capture_host() -> dict[str, Any]:
    """What a PyDataset can draw from: Python's and NumPy's."""
    return {"python": _as_state(random), "numpy": np.random.get_state(legacy=False)}


def restore_host(state: dict[str, Any]) -> None:
    """Puts back Python's and NumPy's."""
    random.setstate(_from_state(state["python"]))
    np.random.set_state(state["numpy"])


def _as_state(source: Any) -> list[Any]:
    version, numbers, gauss = source.getstate()
    return [version, np.asarray(numbers, np.uint32), gauss]


def _from_state(state: list[Any]) -> Any:
    version, numbers, gauss = state
    return version, tuple(numbers.tolist()), gauss


def _eager() -> Any:
    """Where TensorFlow draws the seed of an operation that is called outside of a function.

    None where no seed was set: nothing that is drawn could be drawn again.
    """
    from tensorflow.python.eager import context

    return context.context()._rng if context.global_seed() is not None else None


def _tf() -> Any:
    from tensorflow.python.ops import stateful_random_ops

    # tf.random.get_global_generator() would make one, from a state that nobody chose.
    made = stateful_random_ops.global_generator
    return None if made is None else values_of(made.state)


def _keras() -> Any:
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    made = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return None if made is None else values_of(made.state.value)


# The model of a training that is about to begin, made whole.
#
# Guarantees: nothing is drawn from random state that training would not draw, and no batch is
# read; a model of which that cannot be said is refused, with what to build, as is one whose first
# step makes what was not there before.


def build_all(model: Any, epoch_iterator: Any) -> None:
    """Makes every variable that training would make at its first step, from the data's shapes."""
    import keras

    try:
        model._symbolic_build(data_batch=epoch_iterator._distributed_dataset.element_spec)
    except Exception as error:
        raise UserError(
            f"{type(model).__name__} cannot be built from the shapes of its data: what it makes at "
            "its first step could not be put back.",
            expected="a model that is built before fit()",
            received=f"{type(error).__name__}: {error}".splitlines()[0],
            fix="call it on a batch first; with a train_step of its own and no call(), build its "
            "layers and set model.built = True",
        ) from error
    outer: list[tuple[Any, str]] = []
    for owner, where, optimizer in kept_by(model):
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            continue
        # One inside another is built with that, or never used: see below.
        if any(owner is whose and where.startswith(f"{each}.") for whose, each in outer):
            continue
        outer.append((owner, where))
        if optimizer.built:
            continue
        # A model that was compiled on its own may be a layer, and never train by its optimizer:
        # ``require_all_there`` sees whether it does.
        if where == "optimizer" and owner is not model:
            continue
        whose = "model" if owner is model else f"model.get_layer({owner.name!r})"
        raise UserError(
            f"The optimizer {where} of {type(owner).__name__} is not built: what it makes at "
            "its first step could not be put back.",
            expected="optimizers that are built before fit()",
            fix=f"{whose}.{where}.build(the variables that it trains)",
        )


def require_all_there(model: Any, begun: list[Named]) -> None:
    """Refuses, behind the first step, what that one has made: it was not there to be put back."""
    more = made_since(model, begun)
    if more:
        raise UserError(
            f"The first step of {type(model).__name__} made {more}, which a training that goes on "
            "could not put back.",
            expected="every variable and optimizer there, and built, before fit()",
            fix="make them before fit(); for an optimizer, build(the variables that it trains)",
        )


def made_since(model: Any, begun: list[Named]) -> str:
    """The variables that were not there when the training began, in words; empty: none."""
    there = {id(each.variable) for each in begun}
    more = [each.name for each in variables_of(model) if id(each.variable) not in there]
    shown = ", ".join(more[:3])
    return shown + (f" and {len(more) - 3} more" if len(more) > 3 else "")
