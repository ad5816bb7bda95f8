"""End a step in which this worker waits for the others without end.

TensorFlow has a time limit for each exchange between workers, and starts a thread for each that
sleeps until its time is up: with ten minutes and a hundred steps a second that is more threads than
a machine has. Here one thread looks at when what runs now began.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

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
        # Strategies, and the functions whose tracing has shown that they meet the other workers.
        self._meeting: WeakSet[Any] = WeakSet()
        # What each thread calls now and since when, the outer calls first.
        self._calls: dict[int, list[tuple[Any, float]]] = {}

    def start(self) -> None:
        """Look at the time from now on."""
        from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

        Function.__call__ = self._noted(Function.__call__)
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
        methods = {name: self._noted(getattr(extended, name), True) for name in _ON_STRATEGY}
        return type(extended.__name__, (extended,), methods)

    def _noted(self, plain: Callable[..., Any], meets: bool = False) -> Callable[..., Any]:
        """Return a method whose calls are noted; ``meets`` says that it meets other workers."""
        import tensorflow as tf

        @functools.wraps(plain)
        def noted(this: Any, *args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            calls = self._calls.setdefault(thread, [])
            calls.append((this, time.monotonic()))
            try:
                if meets or this in self._meeting:
                    # What is being traced around it meets them as well.
                    traced = [] if tf.executing_eagerly() else [each for each, _ in calls]
                    self._meeting.update((this, *traced))
                return plain(this, *args, **kwargs)
            finally:
                calls.pop()
                if not calls:
                    del self._calls[thread]

        return noted

    def _watch(self) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import context

        while True:
            time.sleep(min(self.limit_s / 20, 5.0))
            limit_s = self.limit_s * self._steps
            if time.monotonic() - self._earliest() > limit_s:
                # Nothing of this process can be exchanged from here on, as with TensorFlow's own.
                message = f"Collective ops are given up: a step lasts longer than {limit_s:g} s"
                context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)
                return

    def _earliest(self) -> float:
        """Return when the step began that has lasted longest; now, where there is none."""
        under_way = [call for calls in list(self._calls.values()) for call in list(calls)]
        begun = [since for what, since in under_way if what in self._meeting]
        return min(begun, default=time.monotonic())
