"""Keep the updates that workers on parameter servers would lose to each other.

``keras.Variable.assign_add`` is ``assign(self + value)``; optimizers count their iterations so, and
momenta, moving statistics, metrics and seeds are assigned in the same way: of two workers that read
at the same moment the update of one is lost (keras#18668, open since 2023).

While a step is traced inside ``kept_updates()`` each shared variable is read once, and an
assignment of what comes from the reading adds its difference, which the parameter server does in
one piece. What is put in a variable, such as a maximum, a flag or a pointer that wraps round, is
assigned as before: there a difference would be wrong.

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

# As long as a tensor goes through these it is the same number.
_SAME = frozenset({"Cast", "EnsureShape", "Identity", "Reshape", "StopGradient"})
# What comes out of these was put there, not added.
_PUT = frozenset({"ConcatV2", "FloorMod", "Maximum", "Minimum", "Mod", "Roll", "SelectV2"}) | {
    "TensorScatterUpdate",
    "XlaDynamicUpdateSlice",
}


def adds_to(value: Any, read: list[Any]) -> bool:
    """Return whether the difference of ``value`` to what was ``read`` may be added by each worker.

    It is a number that comes from what was read. The graph is read, nothing is computed.
    """
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_complex):
        return False
    last = value
    while last.op.type in _SAME:
        last = last.op.inputs[0]
    if last.op.type in _PUT:
        return False
    wanted = set(map(_key, read))
    left, looked_at = deque([value]), set()
    # Nearest first: an average has what was read close to its end, and a model far before that.
    while left:
        tensor = left.popleft()
        if _key(tensor) in wanted:
            return True
        if _key(tensor) not in looked_at:
            looked_at.add(_key(tensor))
            left.extend(_made_from(tensor))
    return False


def _key(tensor: Any) -> tuple[int, str]:
    return id(tensor.graph), tensor.name


def _made_from(tensor: Any) -> list[Any]:
    """Return what a tensor is computed from; of one in a branch or loop, what was handed in."""
    if tensor.op.type != "Placeholder":
        return list(tensor.op.inputs)
    captures = getattr(tensor.graph, "captures", ())
    return [out for out, inside in captures if inside is tensor and hasattr(out, "op")]


class Readings:
    """The shared variables of a step that is being traced, as the step has read them."""

    def __init__(self, variables: Iterable[Any]) -> None:
        self._shared = {id(each): stored(each) for each in variables}
        self._read: dict[int, list[Any]] = defaultdict(list)

    def shared(self, variable: Any) -> Any:
        """Return TensorFlow's variable on its parameter server; None of what is not shared."""
        return self._shared.get(id(variable))

    def take(self, variables: Iterable[Any]) -> None:
        """Read anew those of these variables that are shared."""
        for variable in variables:
            shared = self.shared(variable)
            if shared is not None:
                with tf.device(shared.device):  # so what is computed there stays there
                    store(variable, shared.read_value())
                self._read[id(variable)].append(stored(variable))

    def assign(self, variable: Any, value: Any) -> None:
        """Add the difference to what was read, or put the value."""
        shared, read = self.shared(variable), self._read[id(variable)]
        value = tf.cast(value, shared.dtype)
        if adds_to(value, read):
            shared.assign_add(value - stored(variable))
        else:
            shared.assign(value)
        # What a branch has made is known in that branch alone.
        if value.graph is stored(variable).graph:
            store(variable, value)
            read.append(value)


@contextmanager
def kept_updates(variables: Sequence[Any]) -> Iterator[Readings]:
    """Trace a step inside whose assignments to ``variables`` add up over the workers."""
    readings = Readings(variables)
    plain = getattr(keras.Variable, DIRECT_ASSIGN)

    def direct_assign(self: Any, value: Any) -> Any:
        if readings.shared(self) is None:
            return plain(self, value)
        return readings.assign(self, value)

    ways = {name: _of_optimizer(name, readings) for name in ("assign", "assign_add", "assign_sub")}
    with (
        replaced(keras.optimizers.Optimizer, **ways),
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
                # A weight that is assigned whole: what others add from here on is kept.
                where = variable.value if isinstance(variable, keras.Variable) else variable
                return where.assign_add(tf.cast(value, where.dtype) - where.read_value())
            return plain(self, variable, value)
        if isinstance(value, tf.IndexedSlices):  # TensorFlow updates some rows in one piece
            getattr(shared, rows[name])(tf.cast(value, shared.dtype))
            return readings.take([variable])
        now = stored(variable)
        value = tf.cast(value, now.dtype)
        whole = {"assign": value, "assign_add": now + value}.get(name, now - value)
        return readings.assign(variable, whole)

    return assign
