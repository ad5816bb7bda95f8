"""The random state of a process: Python's, NumPy's, TensorFlow's and Keras's own.

Guarantees: what was captured is put back exactly. What layers draw from is among the model's
variables. Not here: the seed of an operation inside a compiled step (``tf.random.uniform`` without
a generator), whose state TensorFlow lets nobody read; ``keras.random`` has none of that.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tfopt.resuming.variables import put_back, values_of


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
