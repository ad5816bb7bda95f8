"""The base class of the Keras constraints for masks and clusters.

This file imports Keras and TensorFlow: import it inside functions.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from tfopt.compress.kernels import Site
from tfopt.errors import UserError
from tfopt.keras_internals import is_saving

_log = logging.getLogger("tfopt")


def warn_needs_tfopt() -> None:
    """Warn once that the file with masks or ranges that Keras is writing needs tfopt."""
    if is_saving():
        _warn_once()


@functools.cache
def _warn_once() -> None:
    _log.warning(
        "this file has masks, clusters or ranges of tfopt: open it with tfopt.load(path), or save "
        "tfopt.strip(model) instead, which needs no tfopt"
    )


class Constraint(keras.constraints.Constraint):  # type: ignore[misc]
    """A constraint with a state per kernel; the layer's own constraint, if any, is applied first.

    One instance can have several kernels, as in attention layers. A state is created once, where
    the kernel is: on every replica of a strategy, and outside of the step that is being compiled.
    It is not a weight of the layer: it is restored from the kernel's values and from
    ``get_config``, and fitted to the current weights (a checkpoint's, say) when a step is compiled.
    """

    def __init__(self, inner: Any = None, step: int = 1) -> None:
        self.inner = keras.constraints.get(inner)
        self._first_step = step
        # By id of the kernel; a state refers to its kernel, so that the id is not reused.
        self._states: dict[int, Any] = {}

    def bind(self, kernel: Any) -> None:
        """Create a kernel's state and apply it. Not for a compiled step."""
        raise NotImplementedError

    def apply_final(self, kernel: Any) -> None:
        """Write the constrained values into the kernel."""
        raise NotImplementedError

    @property
    def step(self) -> int:
        """Return the number of the next batch, counted from 1."""
        raise NotImplementedError

    @property
    def unfinished(self) -> str | None:
        """Return the position of an unfinished schedule, or None."""
        return None

    def get_config(self) -> dict[str, Any]:
        """Write the constrained values into the kernels, and return the configuration."""
        warn_needs_tfopt()
        for state in self._states.values():
            self.apply_final(state.kernel)
        return {"inner": keras.constraints.serialize(self.inner), "step": self.step}

    def _new_state(self, kernel: Any, local: Any) -> Any:
        """Return a new state of a kernel; ``local`` is one replica's variable."""
        raise NotImplementedError

    def _fit_state(self, state: Any, local: Any) -> None:
        """Fit a state to the current weights, if others were loaded."""
        raise NotImplementedError

    def _after_inner(self, kernel: Any) -> Any:
        return tf.convert_to_tensor(kernel if self.inner is None else self.inner(kernel))

    def _state(self, kernel: Any) -> Any:
        if id(kernel) not in self._states or tf.inside_function():
            _in_cross_replica(lambda: self._update_state(kernel))
        return self._states[id(kernel)]

    def _update_state(self, kernel: Any) -> None:
        with _outside_the_step(kernel) as local:
            if id(kernel) in self._states:
                self._fit_state(self._states[id(kernel)], tf.convert_to_tensor(local))
            else:
                self._states[id(kernel)] = self._new_state(kernel, local)


def require_free(
    name: str, sites: Sequence[Site], then: str, *, replaced: type | tuple[type, ...] = ()
) -> None:
    """Raise for a model with constraints of tfopt, except of the class to be ``replaced``."""
    for site in sites:
        constraint = site.constraint
        if isinstance(constraint, Constraint) and not isinstance(constraint, replaced):
            raise UserError(
                f"{name!r} has masks or clusters already.",
                expected="a model without masks or clusters",
                received=f"{type(constraint).__name__} on {site.path}",
                fix=f"call tfopt.strip(model) first: {then}",
            )


def replicated(value: Any, name: str) -> Any:
    """Return a variable that every replica updates itself.

    All replicas compute the same value from the same weights; an aggregation is not possible
    inside ``tf.cond``.
    """
    return tf.Variable(value, name=name, trainable=False, aggregation=tf.VariableAggregation.NONE)


def _in_cross_replica(work: Callable[[], None]) -> None:
    """Call ``work`` where mirrored variables can be created and changed."""
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        tf.distribute.get_replica_context().merge_call(lambda strategy: work())
    else:
        work()


@contextmanager
def _outside_the_step(kernel: Any) -> Iterator[Any]:
    """Yield one replica's weights, outside of a step being compiled, which creates no variables."""
    with tf.init_scope():
        local, strategy = kernel.value, getattr(kernel.value, "distribute_strategy", None)
        if strategy is None:
            strategy = tf.distribute.get_strategy()
        else:
            local = strategy.experimental_local_results(local)[0]
        with strategy.scope():
            yield local
