"""Errors a user sees, and the checks that raise them.

A mistake of the user is always a :class:`UserError` (a ``ValueError``), raised before anything is
changed; the command line prints it without a traceback. Numbers may be NumPy's or a variable that
holds a count: the checks return Python's own. Truth values and texts are no numbers.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, fields
from numbers import Integral, Real
from typing import Any

# Errors


class UserError(ValueError):
    """A mistake the user can mend: what happened, expected, received, the fix.

    Example:
        try:
            tfopt.prune(model, 1.5)
        except tfopt.UserError as error:
            print(error.what, error.expected, error.fix)

    Attributes:
        what: What happened, in one sentence.
        expected: What would have been right.
        received: What was given.
        fix: What to do.
    """

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

    def under(self, place: str) -> UserError:
        """Return the same error with the place of the mistake, a file or a key, in front."""
        return UserError(
            f"{place}: {self.what}" if place else self.what,
            expected=self.expected,
            received=self.received,
            fix=self.fix,
        )


class DevicesAlreadyInitialised(UserError):
    """A device setting came after TensorFlow had initialised its devices."""


class WorkerMissing(UserError):
    """Another worker is not there, has gone, or does not answer."""


class CannotCombine(UserError):
    """Two transforms (or a transform and the job) that cannot run together."""


# Checks that return a number, or None for anything else


def whole(value: Any) -> int | None:
    """Return a whole number, or the one that an array without dimensions holds; else None."""
    if isinstance(value, bool):
        return None
    # Of the class: a data frame answers any name as that of a column.
    has_shape = hasattr(type(value), "shape") and hasattr(type(value), "dtype")
    is_scalar = has_shape and value.shape == () and "int" in str(value.dtype)
    if not isinstance(value, Integral) and not is_scalar:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):  # a symbolic tensor, while code is traced
        return None


def real(value: Any) -> float | None:
    """Return a number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def within(value: Any, least: float, below: float) -> bool:
    """Return whether it is a number from ``least`` on and below ``below``."""
    number = real(value)
    return number is not None and least <= number < below


# Checks that refuse


def require_count(name: str, value: object, minimum: int = 1) -> int:
    """Return a whole number of at least ``minimum``; refuse anything else."""
    count = whole(value)
    if count is None or count < minimum:
        raise UserError(
            f"{name} is not a count.",
            expected=f"a whole number of at least {minimum}",
            received=repr(value),
        )
    return count


def require_switch(name: str, value: object, expected: str = "True or False") -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise UserError(f"{name} is a switch.", expected=expected, received=repr(value))


def require_number(name: str, value: object) -> float:
    """Return what a user's function gave as a finite number; refuse anything else."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{name} is not a number.", expected="a finite one", received=repr(value))
    return number


# Settings: frozen dataclasses that print, compare and save as plain values


def keep_plain(settings: Any) -> None:
    """Make the numbers among a frozen dataclass's fields Python's own, in ``__post_init__``."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        number = real(value) if isinstance(value, Real) else whole(value)
        if number is not None:
            object.__setattr__(settings, each.name, number)


def hashable(value: Any) -> Any:
    """Return a list as a tuple, so that a transform given one is a value all the same."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def in_short(value: Any) -> str:
    """Return a value for an error's text: an array by its shape and type, else its repr."""
    if getattr(value, "shape", ()) and hasattr(value, "dtype"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}"
    return repr(value)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, cut to what a line holds; else its type."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip()[:400] if lines else type(error).__name__


def short_repr(value: Any) -> str:
    """Return a dataclass value as Python writes it, without the fields that have their default."""
    changed = [
        f"{each.name}={getattr(value, each.name)!r}"
        for each in fields(value)
        if getattr(value, each.name) != default_of(each)
    ]
    return f"{type(value).__name__}({', '.join(changed)})"


def default_of(each: Field[Any]) -> Any:
    """Return the default of a dataclass field; ``MISSING`` where it has none."""
    return each.default if each.default_factory is MISSING else each.default_factory()
