"""Capture and restore the random state of a process: Python's, NumPy's, TensorFlow's, Keras's.

What layers draw from is among the model's variables. The seed of an operation inside a compiled
step (``tf.random.uniform`` without a generator) is not here: TensorFlow lets nobody read its state.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tfopt.resume.variables import put_back, values_of


def capture() -> dict[str, Any]:
    """Return all of it."""
    from keras.src.backend.common import global_state
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
    from tensorflow.python.ops import stateful_random_ops

    eager = _eager()
    # tf.random.get_global_generator() would make one, from a state that nobody chose.
    of_tf = stateful_random_ops.global_generator
    of_keras = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return {
        **capture_host(),
        "eager": None if eager is None else _as_state(eager),
        "tf": None if of_tf is None else values_of(of_tf.state),
        "keras": None if of_keras is None else values_of(of_keras.state.value),
    }


def restore(state: dict[str, Any]) -> None:
    """Put all of it back."""
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
    """Return what a PyDataset can draw from: Python's and NumPy's."""
    return {"python": _as_state(random), "numpy": np.random.get_state(legacy=False)}


def restore_host(state: dict[str, Any]) -> None:
    """Put back Python's and NumPy's."""
    random.setstate(_from_state(state["python"]))
    np.random.set_state(state["numpy"])


def _as_state(source: Any) -> list[Any]:
    version, numbers, gauss = source.getstate()
    return [version, np.asarray(numbers, np.uint32), gauss]


def _from_state(state: list[Any]) -> Any:
    version, numbers, gauss = state
    return version, tuple(numbers.tolist()), gauss


def _eager() -> Any:
    """Return where TensorFlow draws the seed of an operation that no function holds.

    None where no seed was set: nothing that is drawn could be drawn again.
    """
    from tensorflow.python.eager import context

    return context.context()._rng if context.global_seed() is not None else None
