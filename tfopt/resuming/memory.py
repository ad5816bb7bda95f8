"""What the other callbacks of a training remember: its history, the best loss so far, a count.

Guarantees: only what changes while it trains is kept, so that a setting in the script is never
overridden by a checkpoint; what cannot be kept is named. A callback with ``get_state()`` and
``set_state(state)`` is asked, and its attributes are left alone.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tfopt.resuming.encoding import Unsaveable, pack

# Keras's own: which model it is, and what fit() was asked.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})


class Memory:
    """Reads and puts back what callbacks remember. Made when each has begun its training."""

    def __init__(self, callbacks: list[Any]) -> None:
        self._callbacks = dict(zip(_names(callbacks), callbacks, strict=True))
        self._begun = {name: _attributes(each) for name, each in self._callbacks.items()}
        self.unsaveable: set[str] = set()

    def read(self) -> dict[str, Any]:
        """By each callback's name, what has changed in it since it began."""
        return {name: self._read_one(name, each) for name, each in self._callbacks.items()}

    def put_back(self, state: dict[str, Any]) -> list[str]:
        """Puts back what was read; names what nobody here takes up."""
        for name, remembered in state.items():
            callback = self._callbacks.get(name)
            if callback is None:
                continue
            if _tells(callback):
                callback.set_state(remembered)
                continue
            for attribute, value in remembered.items():
                # It may be put back twice, and changed in place in between.
                setattr(callback, attribute, deepcopy(value))
        return [name for name, told in state.items() if told and name not in self._callbacks]

    def _read_one(self, name: str, callback: Any) -> Any:
        if _tells(callback):
            return callback.get_state()
        changed = {}
        begun = self._begun[name]
        for attribute, value in vars(callback).items():
            if attribute in _NOT_STATE:
                continue
            seen = _seen(value)
            if isinstance(seen, _Opaque):
                # An object may change inside, unseen. What Keras's own callbacks keep of that sort
                # are writers and files, and functions remember nothing.
                own = type(callback).__module__.split(".")[0] != "keras"
                if own and not callable(value):
                    self.unsaveable.add(f"{name}.{attribute} ({seen.kind})")
            elif seen != begun.get(attribute):
                changed[attribute] = value
        return changed


@dataclass(frozen=True)
class _Opaque:
    """A value that cannot be packed, by its type."""

    kind: str


def _attributes(callback: Any) -> dict[str, Any]:
    return {} if _tells(callback) else {n: _seen(v) for n, v in vars(callback).items()}


def _seen(value: Any) -> Any:
    """A value as something that can be compared with a later one."""
    arrays: list[Any] = []
    try:
        packed = pack(value, arrays)
    except Unsaveable as refused:
        return _Opaque(str(refused))
    return packed, [(each.dtype.name, each.shape, each.tobytes()) for each in arrays]


def _tells(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(
        getattr(callback, "set_state", None)
    )


def _names(callbacks: list[Any]) -> list[str]:
    """Each by its class; the second of one class with a number."""
    seen: Counter[str] = Counter()
    names = []
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return names
