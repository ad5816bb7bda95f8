"""Keep updates that workers on parameter servers would overwrite.

``keras.Variable.assign_add`` is ``assign(self + value)``, by which optimizers count iterations, and
momenta, moving statistics, metrics and seeds are assigned in the same way: if two workers read at
the same time, one update is lost (keras#18668, open since 2023).

While a step is traced inside ``adding_updates()`` each shared variable is read once, and the
assignment of a value that is computed from it adds the difference, which is atomic on the parameter
server. Other values, such as a maximum, a flag or a wrapping index, are assigned.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfopt.hooks import replaced
from tfopt.keras_internals import DIRECT_ASSIGN, store, stored

# Operations that keep the values.
_SAME = frozenset({"Cast", "EnsureShape", "Identity", "Reshape", "StopGradient"})
# Operations whose results are assigned, not added.
_PUT = frozenset({"ConcatV2", "FloorMod", "Maximum", "Minimum", "Mod", "Roll", "SelectV2"}) | {
    "TensorScatterUpdate",
    "XlaDynamicUpdateSlice",
}


def adds_to(value: Any, read: list[Any]) -> bool:
    """Return whether ``value`` is computed from what was ``read``, so that its difference adds up.

    This is decided by the graph, without computing.
    """
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_complex):
        return False
    last = value
    while last.op.type in _SAME:
        last = last.op.inputs[0]
    if last.op.type in _PUT:
        return False
    sources = set(map(_key, read))
    pending, seen = deque([value]), set()
    # Breadth first: the average of a variable reads it near its end.
    while pending:
        tensor = pending.popleft()
        if _key(tensor) in sources:
            return True
        if _key(tensor) not in seen:
            seen.add(_key(tensor))
            pending.extend(_inputs_of(tensor))
    return False


def _key(tensor: Any) -> tuple[int, str]:
    return id(tensor.graph), tensor.name


def _inputs_of(tensor: Any) -> list[Any]:
    """Return the inputs of a tensor; for an input of a branch or loop, the captured tensor."""
    if tensor.op.type != "Placeholder":
        return list(tensor.op.inputs)
    captures = getattr(tensor.graph, "captures", ())
    return [out for out, inside in captures if inside is tensor and hasattr(out, "op")]


class Readings:
    """The shared variables of a traced step, and the values that it has read."""

    def __init__(self, variables: Iterable[Any]) -> None:
        self._shared = {id(variable): stored(variable) for variable in variables}
        self._read: dict[int, list[Any]] = defaultdict(list)

    def shared(self, variable: Any) -> Any:
        """Return TensorFlow's variable on its parameter server; None if it is not shared."""
        return self._shared.get(id(variable))

    def take(self, variables: Iterable[Any]) -> None:
        """Read the shared ones of these variables again."""
        for variable in variables:
            shared = self.shared(variable)
            if shared is not None:
                with tf.device(shared.device):
                    store(variable, shared.read_value())
                self._read[id(variable)].append(stored(variable))

    def assign(self, variable: Any, value: Any) -> None:
        """Add the difference to the read value, or assign the value."""
        shared, read = self.shared(variable), self._read[id(variable)]
        value = tf.cast(value, shared.dtype)
        if adds_to(value, read):
            shared.assign_add(value - stored(variable))
        else:
            shared.assign(value)
        # A tensor of a branch is known only there.
        if value.graph is stored(variable).graph:
            store(variable, value)
            read.append(value)


@contextmanager
def adding_updates(variables: Sequence[Any]) -> Iterator[Readings]:
    """Let assignments to ``variables`` in a step that is traced inside add up over the workers."""
    readings = Readings(variables)
    plain = getattr(keras.Variable, DIRECT_ASSIGN)

    def direct_assign(self: Any, value: Any) -> Any:
        if readings.shared(self) is None:
            return plain(self, value)
        return readings.assign(self, value)

    methods = {
        name: _of_optimizer(name, readings) for name in ("assign", "assign_add", "assign_sub")
    }
    with (
        replaced(keras.optimizers.Optimizer, **methods),
        replaced(keras.Variable, **{DIRECT_ASSIGN: direct_assign}),
        ExitStack() as undo,
    ):
        for variable in variables:
            undo.callback(store, variable, stored(variable))
        readings.take(variables)
        yield readings


def _of_optimizer(name: str, readings: Readings) -> Callable[..., Any]:
    plain = getattr(keras.optimizers.Optimizer, name)
    rows = {"assign": "scatter_update", "assign_add": "scatter_add", "assign_sub": "scatter_sub"}

    def assign(self: Any, variable: Any, value: Any) -> Any:
        shared = readings.shared(variable)
        if shared is None:
            if name == "assign" and not isinstance(value, tf.IndexedSlices):
                # An assigned weight: later additions of others are kept.
                weight = variable.value if isinstance(variable, keras.Variable) else variable
                return weight.assign_add(tf.cast(value, weight.dtype) - weight.read_value())
            return plain(self, variable, value)
        if isinstance(value, tf.IndexedSlices):  # an atomic update of rows
            getattr(shared, rows[name])(tf.cast(value, shared.dtype))
            return readings.take([variable])
        now = stored(variable)
        value = tf.cast(value, now.dtype)
        whole = {"assign": value, "assign_add": now + value}.get(name, now - value)
        return readings.assign(variable, whole)

    return assign
