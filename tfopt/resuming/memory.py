"""What the other callbacks of a training remember: its history, the best loss so far, a count.

Guarantees: only what changes while it trains is kept, so that a setting in the script is never
overridden by a checkpoint; what cannot be kept is named. Variables, also those of a metric or layer
of its own, stay the ones that the callback has, and get their values. A callback with
``get_state()`` and ``set_state(state)`` is asked, and its attributes are left alone.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

from tfopt.errors import UserError
from tfopt.resuming.encoding import Unsaveable, pack
from tfopt.resuming.seen import OF_THE_MODEL, Held, Opaque, form_of, seen, variables_in
from tfopt.resuming.variables import put_back, values_of

# Keras's own: which model it is, and what fit() was asked.
_NOT_STATE = frozenset({"_model", "model", "params", "validation_data"})


class Memory:
    """Reads and puts back what callbacks remember. Made when each has begun its training."""

    def __init__(self, callbacks: list[Any], known: frozenset[int] = frozenset()) -> None:
        """``known`` are the ids of the variables that a checkpoint holds in any case."""
        self._known = known
        self._callbacks = dict(zip(_names(callbacks), callbacks, strict=True))
        self._begun = {name: self._attributes(each) for name, each in self._callbacks.items()}
        self.unsaveable: set[str] = set()

    def read(self) -> dict[str, Any]:
        """By each callback's name, what has changed in it since it began."""
        return {name: self._read_one(name, each) for name, each in self._callbacks.items()}

    def put_back(self, state: dict[str, Any]) -> list[str]:
        """Puts back what was read; names what nobody here takes up."""
        left = []
        for name, remembered in state.items():
            callback = self._callbacks.get(name)
            if callback is None or ("told" in remembered) != _tells(callback):
                left += [name] if any(remembered.values()) else []
                continue
            if _tells(callback):
                callback.set_state(remembered["told"])
                continue
            for attribute, value in remembered["attributes"].items():
                # It may be put back twice, and changed in place in between.
                setattr(callback, attribute, deepcopy(value))
            for attribute, values in remembered["variables"].items():
                variables = variables_in(vars(callback).get(attribute), self._known) or []
                forms = [form_of(values_of(each)) for each in variables]
                if forms != [form_of(each) for each in values]:
                    left.append(f"{name}.{attribute}")
                    continue
                for variable, each in zip(variables, values, strict=True):
                    put_back(variable, each)
        return left

    def _read_one(self, name: str, callback: Any) -> dict[str, Any]:
        if _tells(callback):
            return {"told": _told_by(callback, name)}
        attributes, variables = {}, {}
        begun = self._begun[name]
        for attribute, value in vars(callback).items():
            if attribute in _NOT_STATE:
                continue
            now, before = seen(value, self._known), begun.get(attribute)
            if isinstance(now, Opaque):
                own = type(callback).__module__.split(".")[0] != "keras"
                if _tells_of(value, now, before, own):
                    self.unsaveable.add(f"{name}.{attribute} ({now.kind})")
            elif isinstance(now, Held):
                if not isinstance(before, Held) or now.forms != before.forms:
                    # When a training goes on, they are not there yet to be given their values.
                    made = f"{name}.{attribute} (a variable made while it trains)"
                    self.unsaveable.add(made)
                elif now != before:
                    held = variables_in(value, self._known) or []
                    variables[attribute] = [values_of(each) for each in held]
            elif now != before and now != OF_THE_MODEL:
                attributes[attribute] = value
        return {"attributes": attributes, "variables": variables}

    def _attributes(self, callback: Any) -> dict[str, Any]:
        if _tells(callback):
            return {}
        return {name: seen(value, self._known) for name, value in vars(callback).items()}


def _tells_of(value: Any, now: Opaque, before: Any, own: bool) -> bool:
    """Whether it has to be told that this value is in no checkpoint.

    An object may change inside, unseen. What Keras's own callbacks keep of that sort are writers
    and files, and what can be called and remembers nothing needs no place.
    """
    if callable(value):
        return now.is_unknown() or (isinstance(before, Opaque) and before.inside != now.inside)
    return own and not now.remembers_nothing()


def _told_by(callback: Any, name: str) -> Any:
    told = callback.get_state()
    try:
        pack(told, [])
    except Unsaveable as refused:
        raise UserError(
            f"What get_state() of the callback {name} returns cannot be saved.",
            expected="numbers, texts, arrays, and lists and dicts of them",
            received=str(refused),
        ) from None
    return told


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
