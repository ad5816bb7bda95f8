"""What a train_step of a user's own calls, read off its code.

Guarantees: nothing is run; methods and functions that it calls are read as well, whatever decorates
them, and Keras's own are not: its test_step computes a loss that no train_step has asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any


def asks_for_loss(kind: Any) -> bool:
    """Whether a class's train_step calls compute_loss, or is of code that cannot be read."""
    left, seen = [kind.train_step], set()
    if _code_of(kind.train_step) is None:
        return True
    while left:
        function = _unwrapped(left.pop())
        code = _code_of(function)
        if code is None or code in seen:
            continue
        seen.add(code)
        for name in _names_in(code):
            if name in ("compute_loss", "_compute_loss", "train_step"):
                return True
            called = (getattr(kind, name, None), function.__globals__.get(name))
            left += [each for each in called if not _is_of_keras(each)]
    return False


def _unwrapped(function: Any) -> Any:
    """What was decorated by tf.function, or by what says so as functools.wraps does."""
    return inspect.unwrap(getattr(function, "python_function", function))


def _code_of(function: Any) -> CodeType | None:
    code = getattr(_unwrapped(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _is_of_keras(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("keras.")
