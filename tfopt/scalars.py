"""Numbers as users give them: NumPy's scalars, and a variable that holds a count, are numbers too.

Guarantees: what is taken for a number comes back as Python's own, so that what is kept of it
prints, compares and is saved as one; truth values and texts are no numbers.
"""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral, Real
from typing import Any


def whole(value: Any) -> int | None:
    """A whole number, or one that an array without dimensions holds; None: it is none."""
    if isinstance(value, bool):
        return None
    held = getattr(value, "shape", None) == () and "int" in str(getattr(value, "dtype", ""))
    if not isinstance(value, Integral) and not held:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):  # a tensor that stands for a value, while code is traced
        return None


def real(value: Any) -> float | None:
    """A number; None: it is none."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def within(value: Any, least: float, below: float) -> bool:
    """Whether it is a number from ``least`` on and below ``below``."""
    number = real(value)
    return number is not None and least <= number < below


def keep_plain(settings: Any) -> None:
    """Makes the numbers among a frozen dataclass's fields Python's own, as it is made."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        number = real(value) if isinstance(value, Real) else whole(value)
        if number is not None:
            object.__setattr__(settings, each.name, number)
