"""Capture and restore the random state of a process: Python's, NumPy's, Keras's.

What layers draw from is among the model's variables.
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

    # Read where it is kept: asking for the generator would make one, and draw its seed.
    of_keras = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return {
        **capture_host(),
        "keras": None if of_keras is None else values_of(of_keras.state.value),
    }


def restore(state: dict[str, Any]) -> None:
    """Put all of it back."""
    from keras.src.random.seed_generator import global_seed_generator

    if state["keras"] is not None:
        put_back(global_seed_generator().state.value, state["keras"])
    # Last: Keras draws a seed from Python's where it makes that generator just now.
    restore_host(state)


def capture_host() -> dict[str, Any]:
    """Return what a PyDataset can draw from: Python's and NumPy's."""
    version, numbers, gauss = random.getstate()
    python = [version, np.asarray(numbers, np.uint32), gauss]
    return {"python": python, "numpy": np.random.get_state(legacy=False)}


def restore_host(state: dict[str, Any]) -> None:
    """Put back Python's and NumPy's."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    np.random.set_state(state["numpy"])
