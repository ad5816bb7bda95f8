"""What this worker is doing now, in words: for errors of workers that do different things.

Guarantees: one process does one thing at a time, and this is the innermost: a call of ``fit``,
``evaluate`` or ``predict``, one of these inside another, or the variable that is being made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# The calls that have begun and not ended well, the outer ones first.
calls: list[str] = []
_making: list[str] = []


def doing() -> str:
    """Such as ``predict() inside fit()``."""
    return " inside ".join(f"{call}()" for call in reversed(calls)) or "no call of the model's"


def variable() -> str:
    """The variable that is being made in the scope, by its path."""
    return _making[-1] if _making else "a variable"


@contextmanager
def variables_noted() -> Iterator[None]:
    """Inside, each variable's path is known while it is made, and behind an error."""
    import tensorflow as tf
    from keras.src.backend.common.name_scope import current_path

    def make(create: Callable[..., Any], **given: Any) -> Any:
        _making[:] = ["/".join(filter(None, (current_path(), given.get("name"))))]
        made = create(**given)
        _making.clear()
        return made

    with tf.variable_creator_scope(make):
        yield
