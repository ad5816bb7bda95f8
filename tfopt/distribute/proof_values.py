"""Compare what two runs of the same steps leave: weights, optimizer variables and logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_FLOAT32_UNIT = 2.0**-23
_NOISE = 10  # times the difference that weights changed in their last bits make


@dataclass(frozen=True)
class Value:
    """A variable or a log after a run, on each device.

    Attributes:
        name: The variable's path, or "log 'loss' of step 1".
        copies: Its arrays, one per replica where they differ.
        update: What the run has added, on the first device; of a log, its value.
        group: "trained" or "weights"; the slot of an optimizer; of a log, its name.
    """

    name: str
    copies: list[Any]
    update: Any
    group: str


Values = Mapping[str, Value]
"""The values of a run, by keys that are equal in all runs."""


def differences(
    one: Values, other: Values, noisy: Values, tolerance: float
) -> list[tuple[str, str]]:
    """Return the values of two runs that differ by more than rounding, the clearest first.

    Each is its group, and in words its largest difference of an element and its largest update.

    Args:
        one: The values on one device.
        other: The values on all replicas.
        noisy: The values on one device, begun from slightly changed weights; empty without one.
        tolerance: The difference that is allowed, as a share of a value's update.
    """
    largest = _largest_updates(one)
    found: list[tuple[float, str, str]] = []
    for key, value in one.items():
        copies = other[key].copies if key in other else []
        by = max((_gap(copy, value.copies[0]) for copy in copies), default=np.inf)
        update = _size(value.update)
        allowed = tolerance * max(update, 1e-3 * largest[value.group])
        allowed += 2 * _FLOAT32_UNIT * _size(value.copies[0]) + 1e-12
        if key in noisy:
            allowed += _NOISE * _gap(noisy[key].update, value.update)
        if by > allowed:
            text = f"{value.name} by {by:.1e} of {update:.1e}"
            found.append((by / allowed, value.group, text))
    return [(group, text) for _, group, text in sorted(found, reverse=True)]


def as_array(value: Any) -> Any:
    """Return a tensor or a number as an array of float32 or float64."""
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    return array if array.dtype in ("float32", "float64") else array.astype("float32")


def _largest_updates(values: Values) -> dict[str, float]:
    """Return the largest update of each group."""
    largest: dict[str, float] = defaultdict(float)
    for value in values.values():
        largest[value.group] = max(largest[value.group], _size(value.update))
    return largest


def _size(array: Any) -> float:
    return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))


def _gap(one: Any, other: Any) -> float:
    """Return the largest difference of an element; infinite where only one of both is finite."""
    if one.shape != other.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.subtract(one, other, dtype="float64"))
    equal = (np.isnan(one) & np.isnan(other)) | (one == other)
    return float(np.max(np.where(equal, 0.0, np.nan_to_num(gap, nan=np.inf)), initial=0.0))
