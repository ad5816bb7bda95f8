"""Functions put on instances in place of those of their class, for a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import update_wrapper
from typing import Any


class Hooks:
    """The functions that were replaced, until :meth:`take_off` puts them back in reverse order."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def replace(self, holder: Any, attribute: str, value: Callable[..., Any]) -> None:
        """Put ``value`` on the instance, in front of the class's or the instance's own."""
        had, own = attribute in vars(holder), vars(holder).get(attribute)

        def back() -> None:
            if had:
                setattr(holder, attribute, own)
            else:
                vars(holder).pop(attribute, None)

        plain = getattr(holder, attribute)
        # Keras looks at a call's signature.
        update_wrapper(value, plain, updated=())
        # First, since Ctrl-C may come between the two.
        self._undo.callback(back)
        setattr(holder, attribute, value)

    def take_off(self) -> None:
        """Give all instances back what they had."""
        self._undo.close()
