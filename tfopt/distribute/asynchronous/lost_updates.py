"""Keep the updates that workers on parameter servers would lose to each other.

``keras.Variable.assign_add`` is ``assign(self + value)``; optimizers count their iterations so, and
momenta, moving statistics, metrics and seeds are assigned in the same way: of two workers that read
at the same moment the update of one is lost (keras#18668, open since 2023).

While a step is traced inside ``kept_updates()`` each shared variable is read once, and an
assignment of what comes from the reading adds its difference, which the parameter server does in
one piece. What is put in a variable, such as a loss scale, a maximum, a flag or a pointer that
wraps round, is assigned as before: there a difference would be wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.hooks import replaced

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


class Reading:
    """One shared variable as a step has read it; the step's assignments go through here."""

    def __init__(self, variable: Any, *, adds: bool) -> None:
        self.variable = variable
        self.shared = variable._value
        self.adds = adds
        self._read: list[Any] = []

    def take(self) -> None:
        """Read the variable where it is kept, so that what is computed there stays there."""
        import tensorflow as tf

        with tf.device(self.shared.device):
            self.variable._value = self.shared.read_value()
        self._read.append(self.variable._value)

    def assign(self, value: Any) -> None:
        """Add the difference to what was read, or put the value."""
        import tensorflow as tf

        value = tf.cast(value, self.shared.dtype)
        if self.adds and adds_to(value, self._read):
            self.shared.assign_add(value - self.variable._value)
        else:
            self.shared.assign(value)
        # What a branch has made is known in that branch alone.
        if value.graph is self.variable._value.graph:
            self.variable._value = value
            self._read.append(value)


class Readings:
    """All shared variables of a step that is being traced."""

    def __init__(self, variables: Iterable[Any], settled: Iterable[Any]) -> None:
        last = {id(variable) for variable in settled}
        self._of = {
            id(variable): Reading(variable, adds=id(variable) not in last) for variable in variables
        }

    def of(self, variable: Any) -> Reading | None:
        return self._of.get(id(variable))

    def take(self, variables: Iterable[Any]) -> None:
        """Read anew those of these variables that are shared."""
        for variable in variables:
            reading = self.of(variable)
            if reading is not None:
                reading.take()

    @contextmanager
    def afresh(self, variables: Iterable[Any]) -> Iterator[None]:
        """Read anew for a while: the readings of a branch are of no use outside it."""
        held = [each for each in map(self.of, variables) if each is not None]
        before = [each.variable._value for each in held]
        self.take(each.variable for each in held)
        try:
            yield
        finally:
            for each, value in zip(held, before, strict=True):
                each.variable._value = value

    def give_back(self) -> None:
        for reading in self._of.values():
            reading.variable._value = reading.shared


@contextmanager
def kept_updates(variables: Iterable[Any], settled: Iterable[Any] = ()) -> Iterator[Readings]:
    """Trace a step inside whose assignments to ``variables`` add up over the workers.

    ``settled`` are those among them where the last assignment counts instead.
    """
    import keras

    readings = Readings(variables, settled)
    plain = keras.Variable._direct_assign

    def direct_assign(self: Any, value: Any) -> Any:
        reading = readings.of(self)
        return plain(self, value) if reading is None else reading.assign(value)

    ways = {name: _of_optimizer(name, readings) for name in ("assign", "assign_add", "assign_sub")}
    with (
        replaced(keras.optimizers.Optimizer, **ways),
        replaced(keras.Variable, _direct_assign=direct_assign),
    ):
        try:
            yield readings
        finally:
            readings.give_back()


def _of_optimizer(name: str, readings: Readings) -> Callable[..., Any]:
    import keras
    import tensorflow as tf

    plain = getattr(keras.optimizers.Optimizer, name)
    rows = {"assign": "scatter_update", "assign_add": "scatter_add", "assign_sub": "scatter_sub"}

    def assign(self: Any, variable: Any, value: Any) -> Any:
        reading = readings.of(variable)
        if reading is None:
            if name == "assign" and not isinstance(value, tf.IndexedSlices):
                # A weight that is assigned whole: what others add from here on is kept.
                where = variable.value if isinstance(variable, keras.Variable) else variable
                return where.assign_add(tf.cast(value, where.dtype) - where.read_value())
            return plain(self, variable, value)
        if isinstance(value, tf.IndexedSlices):  # TensorFlow updates some rows in one piece
            getattr(reading.shared, rows[name])(tf.cast(value, reading.shared.dtype))
            return reading.take()
        now = reading.variable._value
        value = tf.cast(value, now.dtype)
        return reading.assign({"assign": value, "assign_add": now + value}.get(name, now - value))

    return assign
