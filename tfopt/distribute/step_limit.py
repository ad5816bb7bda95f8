"""End a step in which this worker waits for the others without end.

TensorFlow has a time limit for each exchange between workers, and starts a thread for each that
sleeps until its time is up: with ten minutes and a hundred steps a second that is more threads than
a machine has. Here one thread looks at when what runs now began.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
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
        # When the step began that each thread is in now.
        self._begun: dict[int, float] = {}
        # The calls whose tracing has shown that they are steps.
        self._first_calls: list[tuple[FrameType, float]] = []

    def start(self) -> None:
        """Look at the time from now on."""
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
        methods = {name: self._watched(getattr(extended, name)) for name in _ON_STRATEGY}
        return type(extended.__name__, (extended,), methods)

    def _watched(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        @functools.wraps(plain)
        def watched(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            tracing = not tf.executing_eagerly()
            if tracing:
                self._note_meeting()
            if tracing or thread in self._begun:  # a part of a step
                return plain(*args, **kwargs)
            self._begun[thread] = time.monotonic()
            try:
                return plain(*args, **kwargs)
            finally:
                del self._begun[thread]

        return watched

    def _note_meeting(self) -> None:
        """Watch the functions that are being traced: they meet the other workers."""
        from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

        frame: FrameType | None = sys._getframe()
        while frame is not None:
            function = frame.f_locals["self"] if frame.f_code is Function._call.__code__ else None
            if function is not None and "_call" not in vars(function):
                # On this one object, for its later calls; this one is under way.
                function._call = self._watched(function._call)
                self._first_calls.append((frame, time.monotonic()))
            frame = frame.f_back

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
        for each in list(self._first_calls):
            with suppress(RuntimeError):  # a frame that is executed cannot be cleared
                each[0].clear()
                self._first_calls.remove(each)
        first = [since for _, since in list(self._first_calls)]
        return min([*list(self._begun.values()), *first], default=time.monotonic())
