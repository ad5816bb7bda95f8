"""The Keras constraints that change kernels while they are trained: what masks and clusters share.

This file imports Keras and TensorFlow at its top, since its classes only exist inside Keras: import
it inside functions.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import keras
import tensorflow as tf

from tfopt.compress.kernels import Site, kernel_name
from tfopt.errors import UserError
from tfopt.keras_internals import is_saving

_log = logging.getLogger("tfopt")
_Setting = TypeVar("_Setting")


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
        raise TypeError(f"{type(self).__name__} does not define bind(kernel)")

    def apply_final(self, kernel: Any) -> None:
        """Write the constrained values into the kernel."""
        raise TypeError(f"{type(self).__name__} does not define apply_final(kernel)")

    @property
    def unfinished(self) -> str | None:
        """Return what its schedule still waits for; None where it is through."""
        return None

    def apply_final_to_all(self) -> None:
        """Write the constrained values into all kernels, for a file that is about to be written."""
        warn_needs_tfopt()
        for state in self._states.values():
            self.apply_final(state.kernel)

    def _made(self, kernel: Any, local: Any) -> Any:
        """Return a new state for a kernel; ``local`` is one replica's variable."""
        raise TypeError(f"{type(self).__name__} does not define _made(kernel, local)")

    def _fit(self, state: Any, local: Any) -> None:
        """Fit a state to the weights that are there, if others were loaded since it was made."""
        raise TypeError(f"{type(self).__name__} does not define _fit(state, local)")

    def _after_inner(self, kernel: Any) -> Any:
        return tf.convert_to_tensor(kernel if self.inner is None else self.inner(kernel))

    def _state(self, kernel: Any) -> Any:
        if id(kernel) not in self._states:
            _where_replicas_meet(lambda: self._add_state(kernel))
        elif tf.inside_function():
            _where_replicas_meet(lambda: self._fit_state(kernel))
        return self._states[id(kernel)]

    def _add_state(self, kernel: Any) -> None:
        with _outside_the_step(kernel) as local:
            self._states[id(kernel)] = self._made(kernel, local)

    def _fit_state(self, kernel: Any) -> None:
        with _outside_the_step(kernel) as local:
            self._fit(self._states[id(kernel)], tf.convert_to_tensor(local))


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


def setting_of(settings: Mapping[str, _Setting], kernel: Any) -> _Setting | None:
    """Return a kernel's setting: by name, where there are several."""
    if len(settings) <= 1:
        return next(iter(settings.values()), None)
    return settings[kernel_name(kernel)]


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
