"""End a step in which this worker waits for the others without end.

TensorFlow has a time limit for each exchange between workers, and starts a thread for each that
sleeps until its time is up: with ten minutes and a hundred steps a second that is more threads than
a machine has. Here one thread looks at when what runs now began.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ON_STRATEGY = (
    "_create_variable",
    "_call_for_each_replica",
    "_reduce_to",
    "_batch_reduce_to",
    "_gather_to_implementation",
)


class StepLimit:
    """How long a step of this process may last; it then ends with DeadlineExceededError.

    A step is what uses the strategy over all workers: a call of a ``tf.function`` in which
    ``strategy.run`` or a reduction is, the same called eagerly, and the making of a variable. The
    time that it waits for its input, or is compiled in, counts. What a worker does by itself has no
    limit, nor has a ConcreteFunction that a script calls itself.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._steps = 1
        # Of each thread that is in a step now.
        self._begun: dict[int, float] = {}
        self._calls = threading.local()
        # The functions that meet the other workers, as their tracing has shown.
        self._meeting: weakref.WeakSet[Any] = weakref.WeakSet()

    def start(self) -> None:
        """Watch every ``tf.function`` of this process from now on."""
        from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

        Function.__call__ = self._watched_function(Function.__call__)
        threading.Thread(target=self._watch, name="tfopt-step-limit", daemon=True).start()

    @contextmanager
    def of_steps(self, steps: int) -> Iterator[None]:
        """Let one call take so many steps inside, and last as many times as long."""
        before, self._steps = self._steps, steps
        try:
            yield
        finally:
            self._steps = before

    def on(self, extended: type[Any]) -> type[Any]:
        """Return the class of a strategy with all that it does for all workers watched."""
        methods = {name: self._watched_method(getattr(extended, name)) for name in _ON_STRATEGY}
        return type(extended.__name__, (extended,), methods)

    def _watched_method(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        @functools.wraps(plain)
        def method(extended: Any, *args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly():
                self._note_meeting()
                return plain(extended, *args, **kwargs)
            with self._step():
                return plain(extended, *args, **kwargs)

        return method

    def _watched_function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        @functools.wraps(plain)
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            outermost = getattr(self._calls, "function", None)
            if outermost is not None or not tf.executing_eagerly():
                return plain(function, *args, **kwargs)
            self._calls.function = function
            try:
                if function in self._meeting:
                    with self._step():
                        return plain(function, *args, **kwargs)
                return plain(function, *args, **kwargs)
            finally:
                self._calls.function = None
                if not getattr(self._calls, "inside", False):
                    self._begun.pop(threading.get_ident(), None)

        return call

    def _note_meeting(self) -> None:
        """Note that what is being traced meets the other workers, this first time too."""
        function = getattr(self._calls, "function", None)
        if function is not None:
            self._meeting.add(function)
            self._begun.setdefault(threading.get_ident(), time.monotonic())

    @contextmanager
    def _step(self) -> Iterator[None]:
        if getattr(self._calls, "inside", False):  # a part of a step
            yield
            return
        self._calls.inside = True
        self._begun[threading.get_ident()] = time.monotonic()
        try:
            yield
        finally:
            self._calls.inside = False
            self._begun.pop(threading.get_ident(), None)

    def _watch(self) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import context

        while True:
            time.sleep(min(self.limit_s / 20, 5.0))
            limit_s = self.limit_s * self._steps
            earliest = min([*self._begun.values()], default=None)
            if earliest is not None and time.monotonic() - earliest > limit_s:
                # Nothing of this process can be exchanged from here on, as with TensorFlow's own.
                message = f"Collective ops are given up: a step lasts longer than {limit_s:g} s"
                context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)
                return
