"""The one shape of an error that a user sees: what happened, expected, received, the fix.

A mistake of the user is always a :class:`UserError` (a ``ValueError``), raised before
anything is changed. The command line prints it without a traceback.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, fields
from numbers import Integral, Real
from typing import Any

# Numbers as users give them: NumPy's scalars, and a variable that holds a count, are numbers too.
#
# Guarantees: what is taken for a number comes back as Python's own, so that what is kept of it
# prints, compares and is saved as one; truth values and texts are no numbers.


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


class UserError(ValueError):
    """A mistake the user can mend, told in up to four lines."""

    def __init__(
        self,
        what: str,
        *,
        expected: str | None = None,
        received: object = None,
        fix: str | None = None,
    ) -> None:
        self.what = what
        self.expected = expected
        self.received = received
        self.fix = fix
        lines = [what]
        if expected is not None:
            lines.append(f"  expected: {expected}")
        if received is not None:
            lines.append(f"  received: {received}")
        if fix is not None:
            lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))


class DevicesAlreadyInitialised(UserError):
    """A device setting came after TensorFlow had initialised its devices."""


class WorkerMissing(UserError):
    """Another worker is not there, has gone, or does not answer."""


class CannotCombine(UserError):
    """Two transforms (or a transform and the job) that cannot run together."""


def short_repr(value: Any) -> str:
    """A dataclass value as Python writes it, without the fields that have their default."""
    told = [
        f"{each.name}={getattr(value, each.name)!r}"
        for each in fields(value)
        if getattr(value, each.name) != _default(each)
    ]
    return f"{type(value).__name__}({', '.join(told)})"


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def hashable(value: Any) -> Any:
    """A list as a tuple, so that a transform given one is a value all the same."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def require_count(name: str, value: object, minimum: int = 1) -> int:
    """Refuses anything but a whole number of at least ``minimum``."""
    count = whole(value)
    if count is None or count < minimum:
        raise UserError(
            f"{name} is not a count.",
            expected=f"a whole number of at least {minimum}",
            received=repr(value),
        )
    return count


def require_switch(name: str, value: object, expected: str = "True or False") -> None:
    """Refuses anything but True and False."""
    if not isinstance(value, bool):
        raise UserError(f"{name} is a switch.", expected=expected, received=repr(value))


def require_number(name: str, value: object) -> float:
    """What a function of the user's own gave, as a number that can be compared with others."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{name} is not a number.", expected="a finite one", received=repr(value))
    return number
