"""The one shape of an error that a user sees: what happened, expected, received, the fix.

A mistake of the user is always a :class:`UserError` (a ``ValueError``), raised before
anything is changed. The command line prints it without a traceback.
"""

from __future__ import annotations


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


class CannotCombine(UserError):
    """Two transforms (or a transform and the job) that cannot run together."""
