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
from contextlib import contextmanager
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
        # Of each thread that is in a step now.
        self._begun: dict[int, float] = {}
        self._of_this_thread = threading.local()
        # The calls, each of one thread, whose tracing has shown that they are steps.
        self._first_calls: list[tuple[int, FrameType, float]] = []

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
            if not tf.executing_eagerly():
                self._note_meeting()
                return plain(*args, **kwargs)
            with self._step():
                return plain(*args, **kwargs)

        return watched

    def _note_meeting(self) -> None:
        """Watch what is being traced: it meets the other workers."""
        for frame in _calls_of_functions():
            function = frame.f_locals["self"]
            if "_call" not in vars(function):
                # On this one object, for its later calls; this one is under way.
                function._call = self._watched(function._call)
                self._first_calls.append((threading.get_ident(), frame, time.monotonic()))

    @contextmanager
    def _step(self) -> Iterator[None]:
        if getattr(self._of_this_thread, "inside", False):  # a part of a step
            yield
            return
        self._of_this_thread.inside = True
        self._begun[threading.get_ident()] = time.monotonic()
        try:
            yield
        finally:
            self._of_this_thread.inside = False
            self._begun.pop(threading.get_ident(), None)

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
            if not _is_running(*each[:2]):
                self._first_calls.remove(each)
        first = [since for _, _, since in list(self._first_calls)]
        return min([*list(self._begun.values()), *first], default=time.monotonic())


def _calls_of_functions() -> Iterator[FrameType]:
    """Yield the frames in which this thread calls a ``tf.function``."""
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    frame = sys._getframe().f_back
    while frame is not None:
        if frame.f_code is Function._call.__code__:
            yield frame
        frame = frame.f_back


def _is_running(thread: int, frame: FrameType) -> bool:
    at = sys._current_frames().get(thread)
    while at is not None and at is not frame:
        at = at.f_back
    return at is frame
