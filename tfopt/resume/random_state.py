"""Capture and restore the random state of Python and NumPy; that of layers is in variables."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


def capture_host() -> dict[str, Any]:
    """Return the states of Python and NumPy."""
    version, numbers, gauss = random.getstate()
    python = [version, np.asarray(numbers, np.uint32), gauss]
    return {"python": python, "numpy": np.random.get_state(legacy=False)}


def restore_host(state: dict[str, Any]) -> None:
    """Restore the states of Python and NumPy."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
    np.random.set_state(state["numpy"])
