"""Remember what the other callbacks of a training keep: its history, the best loss, a count.

Of Keras's own callbacks the plain values are kept that change while it trains, so that a checkpoint
never overrides a setting in the script. Another callback is asked, by ``get_state()`` and
``set_state(state)``; one that has neither is named in a warning where it has attributes of its own.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.packing import Unsaveable, pack

# Which model it is, and what fit() was asked; and a setting that Keras negates along with its
# choice of an operator, which it makes anew.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data", "min_delta"})


class Memory:
    """What callbacks remember, to be read and put back; made when each has begun its training."""

    def __init__(self, callbacks: list[Any]) -> None:
        named = dict(zip(_names(callbacks), callbacks, strict=True))
        self._told = {name: each for name, each in named.items() if _has_state(each)}
        self._of_keras = {
            name: each
            for name, each in named.items()
            if name not in self._told and type(each).__module__.partition(".")[0] == "keras"
        }
        self._begun = {name: _plain_values(each) for name, each in self._of_keras.items()}
        others = {name: each for name, each in named.items() if name not in self._begun}
        self.forgotten = [name for name, each in others.items() if _may_remember(each)]

    def read(self) -> dict[str, Any]:
        """Return what the callbacks remember, by their names."""
        told = {name: _state_of(each, name) for name, each in self._told.items()}
        changed = {}
        for name, each in self._of_keras.items():
            values, begun = _plain_values(each), self._begun[name]
            changed[name] = {
                key: getattr(each, key)
                for key, (packed, arrays) in values.items()
                if arrays or (packed, arrays) != begun.get(key)
            }
        return {"told": told, "changed": changed}

    def put_back(self, state: dict[str, Any]) -> list[str]:
        """Put back what was read; return the names of what no callback here takes up."""
        left = []
        for name, told in state["told"].items():
            if name in self._told:
                self._told[name].set_state(told)
            elif told not in (None, {}):
                left.append(name)
        for name, changed in state["changed"].items():
            if name not in self._of_keras:
                left += [name] if changed else []
                continue
            for attribute, value in changed.items():
                # It may be put back twice, and changed in place in between.
                setattr(self._of_keras[name], attribute, deepcopy(value))
        return left


def _plain_values(callback: Any) -> dict[str, tuple[Any, list[Any]]]:
    """Return the attributes that can be saved, each as JSON and the arrays in it."""
    found = {}
    for name in vars(callback).keys() - _NOT_STATE:
        arrays: list[Any] = []
        try:
            found[name] = pack(getattr(callback, name), arrays), arrays
        except Unsaveable:
            continue  # writers, files, and operators that Keras chooses anew
    return found


def _may_remember(callback: Any) -> bool:
    import keras

    own = vars(callback).keys() - vars(keras.callbacks.Callback()).keys()
    return bool(own) and not _has_state(callback)


def _state_of(callback: Any, name: str) -> Any:
    state = callback.get_state()
    try:
        pack(state, [])
    except Unsaveable as refused:
        raise UserError(
            f"What get_state() of the callback {name} returns cannot be saved.",
            expected="numbers, texts, arrays, and lists, tuples and dicts of them",
            received=str(refused),
        ) from None
    return state


def _has_state(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _names(callbacks: list[Any]) -> list[str]:
    """Return the name of each callback's class; for the second of one class with a number."""
    kinds = [type(callback).__name__ for callback in callbacks]
    numbers = [kinds[: place + 1].count(kind) for place, kind in enumerate(kinds)]
    pairs = zip(kinds, numbers, strict=True)
    return [kind if number == 1 else f"{kind} {number}" for kind, number in pairs]
