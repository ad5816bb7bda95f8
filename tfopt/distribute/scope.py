"""Keep a strategy's scope open where something resets TensorFlow's default graph, or must leave it.

``keras.backend.clear_session()`` resets the graph on which the scopes of this thread are kept: what
is built behind it would train on one device, and the end of the ``with`` fails on an empty list.
So the scope is left before and entered again behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any

from tfopt.hooks import Shared, replaced

_of_this_thread = threading.local()


@contextmanager
def scope_kept(scope: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Be in this scope, which can be made several times; clearing the session does not end it."""
    before = getattr(_of_this_thread, "kept", None)
    with _cleared_outside():
        kept = _of_this_thread.kept = _Kept(scope)
        try:
            yield
        finally:
            _of_this_thread.kept = before
            kept.leave()


class _Kept:
    def __init__(self, scope: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = scope
        self.enter()

    def enter(self) -> None:
        self._scope = self._make()
        self._scope.__enter__()
        self.depth = _depth()

    def leave(self) -> None:
        self._scope.__exit__(None, None, None)


@contextmanager
def outside_scope() -> Iterator[None]:
    """Leave the scope of this thread, and enter it again behind; no scope within it can be left."""
    kept = getattr(_of_this_thread, "kept", None)
    if kept is None or _depth() != kept.depth:
        yield
        return
    kept.leave()
    try:
        yield
    finally:
        kept.enter()


def _depth() -> tuple[int, int]:
    """Return how many scopes, and makers of variables, there are."""
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    return len(graph._distribution_strategy_stack), len(graph._variable_creator_stack)


def _clear_outside() -> AbstractContextManager[None]:
    import tensorflow as tf

    plain = tf.compat.v1.reset_default_graph

    @wraps(plain)
    def reset_default_graph() -> None:
        with outside_scope() if tf.executing_eagerly() else nullcontext():
            plain()

    return replaced(tf.compat.v1, reset_default_graph=reset_default_graph)


_cleared_outside = Shared(_clear_outside)
