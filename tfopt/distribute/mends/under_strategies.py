"""Where one mend is in force: under the strategies that it was asked for, and nowhere else.

Guarantees: what runs under another strategy, or none, is told apart by the strategy itself, so two
trainings of one process, one of tfopt's and one not, do not meet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_of_this_thread = threading.local()


@contextmanager
def set_aside() -> Iterator[None]:
    """Inside, on this thread, nothing is mended: replicas cannot meet inside a loop of each."""
    before = getattr(_of_this_thread, "aside", False)
    _of_this_thread.aside = True
    try:
        yield
    finally:
        _of_this_thread.aside = before


def throwaway_model() -> Any:
    """A small model for a probe; it takes no random number and no name that a user's would have."""
    import keras

    dense = keras.layers.Dense(1, kernel_initializer="zeros", name="probe")
    return keras.Sequential([keras.Input((1,), name="probe_input"), dense], name="probe")


def has_own(model: Any, method: str) -> bool:
    """Whether a method of a model is the user's own: its class's, or set on the model itself."""
    import keras

    found = vars(model).get(method)
    # tfopt.accumulate sets a step that goes through the class's own.
    if found is None or _home(found).startswith("tfopt."):
        found = getattr(type(model), method)
    return getattr(found, "__func__", found) is not getattr(keras.Model, method)


def _home(method: Any) -> str:
    # Where it was written: its __module__ is that of what it stands in for.
    written: str = getattr(method, "__globals__", {}).get("__name__", "")
    return written or type(method).__module__


def current_graph() -> Any:
    """What is being traced now, to tell notes of one trace from those of another."""
    import tensorflow as tf

    # Eagerly there is no graph; what notes something then does so anew in each step.
    return "eager" if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


class UnderStrategies:
    """The strategies that one mend acts under."""

    def __init__(self) -> None:
        self._strategies: list[Any] = []

    def add(self, strategy: Any) -> bool:
        """Takes one in; whether it is the first of all, when the mend is to be put on."""
        first = not self._strategies
        if strategy not in self:
            self._strategies.append(strategy)
        return first

    @property
    def is_empty(self) -> bool:
        """Whether the mend acts nowhere so far."""
        return not self._strategies

    def __contains__(self, strategy: Any) -> bool:
        return any(strategy is each for each in self._strategies)

    def on_a_replica(self) -> bool:
        """Whether what runs, or is being traced, now is one replica's part under one of them."""
        import tensorflow as tf

        if getattr(_of_this_thread, "aside", False):
            return False
        replica = tf.distribute.get_replica_context()
        return replica is not None and replica.strategy in self
