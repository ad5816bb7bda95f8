"""Errors a user sees, and the checks that raise them.

A user's mistake is a :class:`UserError` (a ``ValueError``), raised before anything is changed; the
command line prints it without a traceback. The checks take NumPy numbers and integer variables and
return Python numbers. Booleans and strings are not numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from numbers import Integral, Real
from typing import Any, ClassVar

# What TensorFlow writes before the message of an error in a compiled function.
_FRAMES = re.compile(r'in user code:\s+|File ".*", line \d+, in .*\n.*\n\s*')

# Errors


class UserError(ValueError):
    """A mistake the user can fix: what happened, expected, received, the fix.

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

    exit_code: ClassVar[int] = 2
    """That of a command that ends with it."""

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
        parts = {"expected": expected, "received": received, "fix": fix}
        given = [f"  {name}: {part}" for name, part in parts.items() if part is not None]
        super().__init__("\n".join([what, *given]))

    def under(self, place: str) -> UserError:
        """Return the same error, prefixed by the file or key it was found in."""
        return UserError(
            f"{place}: {self.what}" if place else self.what,
            expected=self.expected,
            received=self.received,
            fix=self.fix,
        )


class DevicesAlreadyInitialised(UserError):
    """A device setting came after TensorFlow had initialised its devices."""


class WorkerMissing(UserError):
    """Another worker has not started, has ended, or does not answer."""


class CannotCombine(UserError):
    """Two transforms (or a transform and the job) that cannot run together."""


# Checks that return a number, or None for anything else


def whole(value: Any) -> int | None:
    """Return an integer, or that of a scalar array, as Python's; None for anything else."""
    if isinstance(value, bool):
        return None
    # Asked of the class: a data frame has an attribute for any column's name.
    has_shape = hasattr(type(value), "shape") and hasattr(type(value), "dtype")
    is_scalar = has_shape and value.shape == () and "int" in str(value.dtype)
    if not isinstance(value, Integral) and not is_scalar:
        return None
    try:
        return int(value)
    except (TypeError, ValueError):  # a symbolic tensor
        return None


def real(value: Any) -> float | None:
    """Return a real number as Python's; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def within(value: Any, least: float, below: float) -> bool:
    """Return whether ``least <= value < below``; False for anything but a number."""
    number = real(value)
    return number is not None and least <= number < below


# Checks that raise


def require_count(name: str, value: object, minimum: int = 1) -> int:
    """Return an integer of at least ``minimum``; raise for anything else."""
    count = whole(value)
    if count is None or count < minimum:
        raise UserError(
            f"{name} is not a count.",
            expected=f"a whole number of at least {minimum}",
            received=repr(value),
        )
    return count


def require_switch(name: str, value: object, expected: str = "True or False") -> None:
    """Raise for anything but True and False."""
    if not isinstance(value, bool):
        raise UserError(f"{name} is a switch.", expected=expected, received=repr(value))


def require_one_of(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise unless ``value`` is one of some texts."""
    if not isinstance(value, str) or value not in choices:
        expected = " or ".join(f'"{choice}"' for choice in choices)
        raise UserError(f"Invalid {name}.", expected=expected, received=repr(value))


def require_within(name: str, value: object, least: float, most: float, unit: str) -> None:
    """Raise unless ``value`` is a number from ``least`` to ``most``."""
    number = real(value)
    if number is None or not least <= number <= most:
        expected = f"{unit}, from {least:g} to {most:g}"
        raise UserError(f"Invalid {name}.", expected=expected, received=repr(value))


def require_number(name: str, value: object) -> float:
    """Return the result of a user's function as a finite float; raise for anything else."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{name} is not a number.", expected="a finite one", received=repr(value))
    return number


# Settings: frozen dataclasses that print, compare and save as plain values


def keep_plain(settings: Any) -> None:
    """Convert the numbers in a frozen dataclass's fields to Python's, in ``__post_init__``."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        number = real(value) if isinstance(value, Real) else whole(value)
        if number is not None:
            object.__setattr__(settings, field.name, number)


def hashable(value: Any) -> Any:
    """Return nested lists as tuples, so that a transform is hashable."""
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def in_short(value: Any) -> str:
    """Return a value for an error: an array by its shape and dtype, anything else by its repr."""
    if getattr(value, "shape", ()) and hasattr(value, "dtype"):
        return f"{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}"
    return repr(value)


def without_colours(text: str) -> str:
    """Return a text without the codes by which Keras colours some of its messages."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut to 400 characters; else its type.

    Where Keras or a compiled function writes the layer, a configuration or frames before the cause,
    it is the cause's.
    """
    text = _FRAMES.sub("", without_colours(str(error))).rpartition("Exception encountered:")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith("Exception encountered when calling")]
    return causes[0][:400] if causes else type(error).__name__


def short_repr(value: Any) -> str:
    """Return the repr of a dataclass value without the fields that have their default."""
    changed = [
        f"{field.name}={getattr(value, field.name)!r}"
        for field in fields(value)
        if getattr(value, field.name) != default_of(field)
    ]
    return f"{type(value).__name__}({', '.join(changed)})"


def default_of(field: Field[Any]) -> Any:
    """Return the default of a dataclass field; ``MISSING`` where it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()
