"""Other values for some variables, for the time of one call, in one thread.

This file imports Keras at its top, since its class must derive from Keras's own: import it inside
functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras


class Substitution(keras.StatelessScope):  # type: ignore[misc]
    """A scope in which some variables have other values; others are read and assigned as ever."""

    def __init__(self, values: Sequence[tuple[Any, Any]]) -> None:
        super().__init__(values, collect_losses=True, initialize_variables=False)

    def get_current_value(self, variable: Any) -> Any:
        found = self.state_mapping.get(id(variable))
        if found is None and self.original_scope is not None:
            return self.original_scope.get_current_value(variable)
        return found

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        self.__exit__()
        try:
            variable.assign(value)
        finally:
            self.__enter__()
