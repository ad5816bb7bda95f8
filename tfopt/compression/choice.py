"""Which layers a user means: by regular expression, by type, or by a function of the layer.

Guarantees: what cannot choose layers is an error before any model is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tfopt.compression.graph import is_layer
from tfopt.errors import UserError

Layers = str | type | tuple[type, ...] | Callable[[Any], bool] | None
Matches = Callable[[str, Any], bool]
"""Whether the layer at a path is meant."""


def matcher(layers: Layers) -> Matches:
    """A function of path and layer out of what the user gave."""
    if layers is None:
        return lambda path, layer: True
    if isinstance(layers, str):
        pattern = compile_pattern("layers", layers)
        return lambda path, layer: pattern.search(path) is not None
    types = (layers,) if isinstance(layers, type) else layers
    if isinstance(types, tuple) and types and all(isinstance(each, type) for each in types):
        return lambda path, layer: isinstance(layer, types)
    # A layer can be called, and tells nothing of other layers.
    if callable(layers) and not is_layer(layers):
        return lambda path, layer: bool(layers(layer))
    raise _chooses_nothing("layers", layers)


def compile_pattern(name: str, pattern: object) -> re.Pattern[str]:
    """A regular expression, or an error that says where it is broken."""
    if not isinstance(pattern, str):
        raise _chooses_nothing(name, pattern)
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"{name} is not a regular expression: {error}.", received=repr(pattern)
        ) from error


def _chooses_nothing(name: str, received: object) -> UserError:
    return UserError(
        f"{name} does not choose layers.",
        expected="a regular expression, a layer class or a tuple of them, a function of a layer, "
        "or None for all",
        received=repr(received),
    )
