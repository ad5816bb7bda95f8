"""Whether a model's own code asks how many replicas there are, as what divides by them does.

Guarantees: the code is only read: the methods of the model's own classes, and the functions that
they name or close over. What another library does, or a number that a script has kept, is not seen.
"""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

_ASKS = "num_replicas_in_sync"
_NOT_OWN = ("keras", "tensorflow", "tfopt", "builtins", "abc")


def asks_for_replicas(model: Any) -> bool:
    """Whether it does in any of its methods, also those that were set on the model itself."""
    kinds = type(model).__mro__
    own = [each for each in kinds if each.__module__.partition(".")[0] not in _NOT_OWN]
    left = [_function(value) for each in (*own, model) for value in vars(each).values()]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        names = _names_in(each.__code__)
        if _ASKS in names:
            return True
        if each.__module__ is None or each.__module__.partition(".")[0] in _NOT_OWN:
            continue
        left += [_function(each.__globals__.get(name)) for name in names]
        left += [_function(_held(cell)) for cell in each.__closure__ or ()]
    return False


def _function(value: Any) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)  # a static or class method
    value = getattr(value, "__wrapped__", value)  # as behind a decorator
    return value if isinstance(value, FunctionType) else None


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names_in(code: CodeType) -> set[str]:
    inside = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names_in, inside))
