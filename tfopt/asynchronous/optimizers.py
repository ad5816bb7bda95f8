"""All optimizers of a model, by the place where it keeps each.

Guarantees: found are the one it was compiled with, those in its attributes, lists, tuples and
dicts, those of layers and compiled models inside it, and what an optimizer has inside itself; each
once, in an order that is the same for each model that the same code builds. One that lies elsewhere
(in an object of the user's own, say) is not found: ``arrivals`` refuses a step that applies it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def optimizers_of(model: Any) -> dict[str, Any]:
    """Every optimizer of a compiled model; the one that it was compiled with comes first."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name, value in [("optimizer", model.optimizer), *_attributes(model)]:
        _look(value, name, found, seen)
    return found


def with_inner(optimizer: Any) -> list[Any]:
    """An optimizer and those inside it."""
    found: dict[str, Any] = {}
    _look(optimizer, "", found, set())
    return list(found.values())


def rates_of(optimizers: dict[str, Any]) -> set[int]:
    """The ids of the learning rates' variables."""
    return {id(getattr(each, "_learning_rate", None)) for each in optimizers.values()}


def _look(value: Any, place: str, found: dict[str, Any], seen: set[int]) -> None:
    import keras

    if id(value) in seen:
        return
    if isinstance(value, keras.optimizers.Optimizer):
        found[place] = value
        children = [(f"{place}.{name}", each) for name, each in _attributes(value)]
    elif isinstance(value, keras.Layer):
        children = [(f"{place}.{name}", each) for name, each in _attributes(value)]
    elif isinstance(value, dict):
        children = [(f"{place}[{key!r}]", each) for key, each in value.items()]
    elif isinstance(value, list | tuple):
        children = [(f"{place}[{index}]", each) for index, each in enumerate(value)]
    else:
        return
    seen.add(id(value))
    for where, each in children:
        _look(each, where, found, seen)


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Keras's own lists come last: a name that the user has given says more."""
    yield from sorted(vars(thing).items(), key=lambda item: item[0].startswith("_"))
