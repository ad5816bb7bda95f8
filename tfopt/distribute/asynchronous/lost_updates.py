"""Keep the updates that workers on parameter servers would lose to each other.

``keras.Variable.assign_add`` is ``assign(self + value)`` in Keras 3.15; optimizers count their
iterations so, and momenta, moving statistics, metrics and seeds are assigned in the same way: of
two workers that read at the same moment the update of one is lost (keras#18668, open since 2023).

While a step is traced inside ``kept_updates()`` each shared variable is read once, and an
assignment adds its difference to the reading, which the parameter server does in one piece. What is
put in a variable and not added to it, such as a loss scale, a flag or a pointer that wraps round,
is assigned as before: there a difference would be wrong.

ScheduleFreeAdamW trains by its own description here, which plain training on TensorFlow does not:
there the momentum that it keeps for "the old one" is the variable itself, and so the new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.compress.hooks import replaced

# As long as a tensor goes through these it is the same number.
_SAME = frozenset({"Cast", "EnsureShape", "Identity", "Reshape", "StopGradient"})
_SUMS = frozenset({"Add", "AddN", "AddV2"})
# What comes out of these was put there, not added.
_PUT = frozenset({"ConcatV2", "FloorMod", "Maximum", "Minimum", "Mod", "Roll"}) | {
    "TensorScatterUpdate",
    "XlaDynamicUpdateSlice",
}

_Key = tuple[int, str]


def adds_to(value: Any, read: list[Any], *, of_optimizer: bool) -> bool:
    """Return whether the difference of ``value`` to what was ``read`` may be added by each worker.

    A whole number must be a sum; another number must come from what was read. An optimizer's own
    state is averages and sums, and the largest of many steps in some. The graph is read, nothing is
    computed.
    """
    number = value.dtype.is_floating or value.dtype.is_integer
    if not hasattr(value, "graph") or not number:
        return bool(number or value.dtype.is_complex)
    keys = {_key(each) for each in read}
    if value.dtype.is_integer:
        return _is_sum(value, keys)
    if not of_optimizer and _through(value).op.type in _PUT:
        return False
    return _comes_from(value, keys)


def _is_sum(value: Any, keys: set[_Key]) -> bool:
    if _key(value) in keys:
        return True
    outside = _captured(value)
    if outside is not None:
        return _is_sum(outside, keys)
    kind, inputs = value.op.type, list(value.op.inputs)
    if kind in _SAME or kind == "Sub":
        return _is_sum(inputs[0], keys)
    return kind in _SUMS and any(_is_sum(each, keys) for each in inputs)


def _comes_from(value: Any, keys: set[_Key]) -> bool:
    left, looked_at = deque([value]), set()
    # Nearest first: an average has what was read close to its end, and a model far before that.
    while left:
        each = left.popleft()
        if _key(each) in keys:
            return True
        if _key(each) in looked_at:
            continue
        looked_at.add(_key(each))
        outside = _captured(each)
        left.extend(each.op.inputs if outside is None else [outside])
    return False


def _through(value: Any) -> Any:
    while value.op.type in _SAME:
        value = value.op.inputs[0]
    return value


def _captured(value: Any) -> Any:
    """Return what a tensor is outside of the branch or loop that it was handed into."""
    if value.op.type != "Placeholder":
        return None
    for outside, inside in getattr(value.graph, "captures", ()):
        if inside is value and hasattr(outside, "op"):
            return outside
    return None


def _key(tensor: Any) -> _Key:
    return id(tensor.graph), tensor.name


class Reading:
    """One shared variable as a step has read it; the step's assignments go through here."""

    def __init__(self, variable: Any, *, adds: bool) -> None:
        self.variable = variable
        self.shared = variable._value
        self.adds = adds
        self._read: list[Any] = []

    def take(self, offset: Any = None) -> None:
        """Read the variable where it is kept, so that what is computed there stays there."""
        import tensorflow as tf

        with tf.device(self.shared.device):
            value = self.shared.read_value()
        self.variable._value = value if offset is None else value + offset
        self._read += [value, self.variable._value]

    def assign(self, value: Any, *, of_optimizer: bool = False) -> None:
        import tensorflow as tf

        value = tf.cast(value, self.shared.dtype)
        if self.adds and adds_to(value, self._read, of_optimizer=of_optimizer):
            self.shared.assign_add(value - self.variable._value)
        else:
            self.shared.assign(value)
        # What a branch has made is known in that branch alone.
        if value.graph is self.variable._value.graph:
            self.variable._value = value
            self._read.append(value)

    def scatter(self, how: str, value: Any) -> None:
        """Update some rows, which TensorFlow does in one piece by itself."""
        getattr(self.shared, how)(value)
        self.take()


class Readings:
    """All shared variables of a step that is being traced."""

    def __init__(self, variables: Iterable[Any], settled: Iterable[Any]) -> None:
        last = {id(variable) for variable in settled}
        self._of = {
            id(variable): Reading(variable, adds=id(variable) not in last) for variable in variables
        }

    def of(self, variable: Any) -> Reading | None:
        return self._of.get(id(variable))

    def take(self, variables: Iterable[Any], offset: Callable[[Any], Any] | None = None) -> None:
        """Read anew those of these variables that are shared."""
        for variable in variables:
            reading = self.of(variable)
            if reading is not None:
                reading.take(offset(variable) if offset else None)

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
    from keras.src.backend.tensorflow.core import Variable
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    readings = Readings(variables, settled)
    of_optimizers = replaced(
        TFOptimizer,
        assign=_of_optimizer("scatter_update", TFOptimizer.assign, readings),
        assign_add=_of_optimizer("scatter_add", TFOptimizer.assign_add, readings),
        assign_sub=_of_optimizer("scatter_sub", TFOptimizer.assign_sub, readings),
    )
    direct_assign = _assigning(Variable._direct_assign, readings)
    with of_optimizers, replaced(Variable, _direct_assign=direct_assign):
        try:
            yield readings
        finally:
            readings.give_back()


def _assigning(plain: Callable[..., Any], readings: Readings) -> Callable[..., Any]:
    def direct_assign(self: Any, value: Any) -> Any:
        reading = readings.of(self)
        return plain(self, value) if reading is None else reading.assign(value)

    return direct_assign


def _of_optimizer(how: str, plain: Callable[..., Any], readings: Readings) -> Callable[..., Any]:
    import keras
    import tensorflow as tf

    def assign(self: Any, variable: Any, value: Any) -> Any:
        reading = readings.of(variable)
        if reading is None:
            if how == "scatter_update" and not isinstance(value, tf.IndexedSlices):
                # A weight that is assigned whole: what others add from here on is kept.
                where = variable.value if isinstance(variable, keras.Variable) else variable
                return where.assign_add(tf.cast(value, where.dtype) - where.read_value())
            return plain(self, variable, value)
        if isinstance(value, tf.IndexedSlices):
            return reading.scatter(how, tf.cast(value, reading.shared.dtype))
        now = reading.variable._value
        value = tf.cast(value, now.dtype)
        if how == "scatter_add":
            value = now + value
        elif how == "scatter_sub":
            value = now - value
        return reading.assign(value, of_optimizer=True)

    return assign
