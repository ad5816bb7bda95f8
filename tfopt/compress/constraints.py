"""The Keras constraints that change kernels while they are trained: what masks and clusters share.

This file imports Keras and TensorFlow at its top, since its classes only exist inside Keras: import
it inside functions.
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
    """Warn once that a file which Keras writes now, with masks or ranges, needs tfopt."""
    if is_saving():
        _warn_once()


@functools.cache
def _warn_once() -> None:
    _log.warning(
        "this file holds what tfopt keeps on the model: open it with tfopt.load(path), or save "
        "tfopt.strip(model) instead, which needs no tfopt"
    )


class Constraint(keras.constraints.Constraint):  # type: ignore[misc]
    """A constraint with a state for each of its kernels; the layer's own, if any, acts first.

    One instance can serve several kernels: attention layers have one constraint for all of theirs.
    A state is made once, where the kernel is: on every replica of a strategy, and outside of the
    step that is being compiled. It is not among the layer's weights: it is found again in the
    kernel's values and in what ``get_config`` saves, and is fitted to the weights that are there
    (a checkpoint's, say) each time a step is compiled.
    """

    def __init__(self, inner: Any = None) -> None:
        self.inner = keras.constraints.get(inner)
        # A state refers to its kernel, so that no other kernel gets the id that it is filed under.
        self._states: dict[int, Any] = {}

    def bind(self, kernel: Any) -> None:
        """Make a kernel's state and apply it. Not for a compiled step."""
        raise NotImplementedError

    def apply_final(self, kernel: Any) -> None:
        """Write the constrained values into the kernel."""
        raise NotImplementedError

    @property
    def step(self) -> int:
        """Return the number of the batch that will be trained next, counted from 1."""
        raise NotImplementedError

    @property
    def unfinished(self) -> str | None:
        """Return what its schedule still waits for; None where it is through."""
        return None

    def get_config(self) -> dict[str, Any]:
        """Write the constrained values into the kernels, and return what a file holds of it."""
        warn_needs_tfopt()
        for state in self._states.values():
            self.apply_final(state.kernel)
        return {"inner": keras.constraints.serialize(self.inner), "step": self.step}

    def _new_state(self, kernel: Any, local: Any) -> Any:
        """Return a new state for a kernel; ``local`` is one replica's variable."""
        raise NotImplementedError

    def _fit_state(self, state: Any, local: Any) -> None:
        """Fit a state to the weights that are there, if others were loaded since it was made."""
        raise NotImplementedError

    def _after_inner(self, kernel: Any) -> Any:
        return tf.convert_to_tensor(kernel if self.inner is None else self.inner(kernel))

    def _state(self, kernel: Any) -> Any:
        if id(kernel) not in self._states or tf.inside_function():
            _where_replicas_meet(lambda: self._update_state(kernel))
        return self._states[id(kernel)]

    def _update_state(self, kernel: Any) -> None:
        with _outside_the_step(kernel) as local:
            if id(kernel) in self._states:
                self._fit_state(self._states[id(kernel)], tf.convert_to_tensor(local))
            else:
                self._states[id(kernel)] = self._new_state(kernel, local)


def require_free(
    name: str, sites: Sequence[Site], then: str, *, replaced: type | None = None
) -> None:
    """Refuse a model on whose kernels tfopt holds something else than what will be replaced."""
    for site in sites:
        held = site.constraint
        if isinstance(held, Constraint) and not (replaced and isinstance(held, replaced)):
            raise UserError(
                f"Something is held on {name!r} already.",
                expected="a model without masks or clusters",
                received=f"{type(held).__name__} on {site.path}",
                fix=f"call tfopt.strip(model) first: {then}",
            )


def replicated(value: Any, name: str) -> Any:
    """Return a variable that every replica updates for itself.

    All replicas see the same weights, so they come to the same value; an aggregation would need
    the replicas to meet, which is forbidden inside a condition.
    """
    return tf.Variable(value, name=name, trainable=False, aggregation=tf.VariableAggregation.NONE)


def _where_replicas_meet(work: Callable[[], None]) -> None:
    """Work where the variables that the replicas mirror can be made and changed."""
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        tf.distribute.get_replica_context().merge_call(lambda strategy: work())
    else:
        work()


@contextmanager
def _outside_the_step(kernel: Any) -> Iterator[Any]:
    """Give one replica's weights, outside of a step being compiled: no variable is born there."""
    with tf.init_scope():
        local, strategy = kernel.value, getattr(kernel.value, "distribute_strategy", None)
        if strategy is None:
            strategy = tf.distribute.get_strategy()
        else:
            local = strategy.experimental_local_results(local)[0]
        with strategy.scope():
            yield local
