"""Substitute values of variables during one call, in one thread.

This file imports Keras: import it inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras


class Substitution(keras.StatelessScope):  # type: ignore[misc]
    """A scope in which some variables have other values; the rest is read and assigned as usual."""

    def __init__(self, values: Sequence[tuple[Any, Any]]) -> None:
        super().__init__(values, collect_losses=True, initialize_variables=False)

    def get_current_value(self, variable: Any) -> Any:
        value = self.state_mapping.get(id(variable))
        if value is None and self.original_scope is not None:
            return self.original_scope.get_current_value(variable)
        return value

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        self.__exit__()
        try:
            variable.assign(value)
        finally:
            self.__enter__()
