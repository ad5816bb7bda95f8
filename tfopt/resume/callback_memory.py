"""Save and restore the state of the other callbacks: the history, the best loss, counts.

Of Keras's callbacks, values are saved that change in training, so that a checkpoint does not
override a setting of the script. Other callbacks have ``get_state()`` and ``set_state(state)``; a
warning names those with attributes but without these methods.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.store import NotSerializable, pack

# Set by fit(); and ``min_delta``, which Keras negates along with its choice of an operator.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data", "min_delta"})


class CallbackStates:
    """The states of callbacks, created after their ``on_train_begin``."""

    def __init__(self, callbacks: list[Any]) -> None:
        named = dict(zip(_names(callbacks), callbacks, strict=True))
        self._stateful = {name: called for name, called in named.items() if _has_state(called)}
        self._of_keras = {
            name: called
            for name, called in named.items()
            if name not in self._stateful and type(called).__module__.partition(".")[0] == "keras"
        }
        self._initial = {name: _plain_values(called) for name, called in self._of_keras.items()}
        others = {name: called for name, called in named.items() if name not in self._initial}
        self.not_saved = [name for name, called in others.items() if _may_have_state(called)]

    def read(self) -> dict[str, Any]:
        """Return the states, by the names of the callbacks."""
        states = {name: _state_of(called, name) for name, called in self._stateful.items()}
        changed = {}
        for name, callback in self._of_keras.items():
            values, initial = _plain_values(callback), self._initial[name]
            changed[name] = {
                key: getattr(callback, key)
                for key, (packed, arrays) in values.items()
                if arrays or (packed, arrays) != initial.get(key)
            }
        return {"told": states, "changed": changed}

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Restore the states; return the names of those without a callback."""
        missing = []
        for name, value in state["told"].items():
            if name in self._stateful:
                self._stateful[name].set_state(value)
            elif value not in (None, {}):
                missing.append(name)
        for name, changed in state["changed"].items():
            if name not in self._of_keras:
                missing += [name] if changed else []
                continue
            for attribute, value in changed.items():
                # A copy: it may be restored twice, and changed in between.
                setattr(self._of_keras[name], attribute, deepcopy(value))
        return missing


def _plain_values(callback: Any) -> dict[str, tuple[Any, list[Any]]]:
    """Return the attributes that can be saved, each as JSON and its arrays."""
    values = {}
    for name in vars(callback).keys() - _NOT_STATE:
        arrays: list[Any] = []
        try:
            values[name] = pack(getattr(callback, name), arrays), arrays
        except NotSerializable:
            continue  # such as writers, files and operators
    return values


def _may_have_state(callback: Any) -> bool:
    import keras

    added = vars(callback).keys() - vars(keras.callbacks.Callback()).keys()
    return bool(added) and not _has_state(callback)


def _state_of(callback: Any, name: str) -> Any:
    state = callback.get_state()
    try:
        pack(state, [])
    except NotSerializable as refused:
        raise UserError(
            f"The result of get_state() of the callback {name} cannot be saved.",
            expected="numbers, texts, arrays, and lists, tuples and dicts of them",
            received=str(refused),
        ) from None
    return state


def _has_state(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _names(callbacks: list[Any]) -> list[str]:
    """Return the names of the callbacks' classes, numbered from the second of one class on."""
    kinds = [type(callback).__name__ for callback in callbacks]
    numbers = [kinds[: place + 1].count(kind) for place, kind in enumerate(kinds)]
    pairs = zip(kinds, numbers, strict=True)
    return [kind if number == 1 else f"{kind} {number}" for kind, number in pairs]
