"""One way to run the training step, and the turns in which it is measured.

Guarantees: a turn is one training by ``runner.Prepared`` under Keras's own loop; its first
execution and its warm-up are not counted; afterwards the model's train function and
``steps_per_execution`` are what they were, whether or not an exception passed through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tfopt.bench.resident import builds_anew
from tfopt.errors import UserError
from tfopt.runner import ENDLESS, Prepared

if TYPE_CHECKING:
    from tfopt.bench.clock import WindowClock

Function = Callable[[Any], Any]
_NEVER = 10**9


class Mode:
    """What is measured by turns: a training whose step is ``function``, or Keras's own.

    A mode that must work raises what goes wrong; any other keeps it, in words, in ``failed``.
    """

    def __init__(
        self,
        ready: Prepared,
        each: int,
        function: Function | None = None,
        *,
        warm_up_s: float = 0.0,
        must_work: bool = False,
    ) -> None:
        self.each = each
        self.failed: str | None = None
        self.turns_ms: list[tuple[float, ...]] = []
        self.steps: list[tuple[int, ...]] = []
        self.gaps_ms: list[float] = []
        self.opening_ms: list[float] = []
        self.epoch_length: int | None = None
        self._ready = ready
        self._function = function
        self._warm_up_s = warm_up_s
        self._must_work = must_work
        self._steps = 0
        self._updates = 0

    @classmethod
    def broken(cls, ready: Prepared, error: Exception) -> Mode:
        """One that could not even be made."""
        mode = cls(ready, 1)
        mode.failed = _told(error)
        return mode

    @property
    def updates_a_step(self) -> float | None:
        """By the optimizer's own count; None without steps of a function of its own."""
        return self._updates / self._steps if self._steps else None

    def open(self, limit_s: float, epochs: int) -> None:
        """A first stretch: until so many epochs have ended, or for so long behind the first step.

        Its steps are no windows yet; what passes between its epochs counts.
        """
        import keras

        clock = self._clock(windows=_NEVER, window_ms=0.0, warm_up_s=0.0)
        model, begun, reached = self._ready.model, [0.0], [0]

        def step(batch: int, logs: object) -> None:
            reached[0] = batch + 1
            begun[0] = begun[0] or time.perf_counter()
            seen = 0 < epochs <= len(clock.between_epochs_ms)
            late = clock.windows_ms and time.perf_counter() - begun[0] > limit_s
            if seen or late:
                model.stop_training = True

        def end(epoch: int, logs: object) -> None:
            if not model.stop_training:
                self.epoch_length = reached[0]

        watch = keras.callbacks.LambdaCallback(on_train_batch_end=step, on_epoch_end=end)
        self._train(clock, watch)
        self.opening_ms = clock.windows_ms
        self.gaps_ms += clock.between_epochs_ms
        if not clock.windows_ms:
            self._ended_early(1, 0)

    def turn(self, windows: int, window_ms: float) -> None:
        """Measures so many windows more."""
        clock = self._clock(windows=windows, window_ms=window_ms, warm_up_s=self._warm_up_s)
        self._train(clock)
        self.turns_ms.append(tuple(round(window, 4) for window in clock.windows_ms))
        self.steps.append(tuple(clock.steps))
        self.gaps_ms += clock.between_epochs_ms
        if len(clock.windows_ms) < windows:
            self._ended_early(windows, len(clock.windows_ms))

    def _clock(self, **span: Any) -> WindowClock:
        from tfopt.bench.clock import WindowClock

        return WindowClock(self._ready.facts.steps_per_epoch, **span)

    def _train(self, *callbacks: Any) -> None:
        if self.failed is not None:
            return
        try:
            with self._in_place():
                self._ready.train(callbacks=callbacks, epochs=ENDLESS, validate=False)
        except Exception as error:
            if self._must_work:
                raise
            # The job trains by itself: a mode of ours that does not is a fact about the mode.
            self.failed = _told(error)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        model, function = self._ready.model, self._function
        if function is None:
            yield
            return
        kept = model.train_function, model.steps_per_execution
        before, calls = _updates(model), [0]

        def counted(iterator: Any) -> Any:
            calls[0] += 1
            return function(iterator)

        model.train_function, model.steps_per_execution = counted, self.each
        try:
            yield
        finally:
            model.train_function, model.steps_per_execution = kept
        if not calls[0]:
            raise builds_anew()
        self._steps += calls[0] * self.each
        self._updates += _updates(model) - before

    def _ended_early(self, wanted: int, got: int) -> None:
        if self.failed is not None:
            return
        error = UserError(
            "The training ended before enough of it was measured.",
            expected=f"{wanted} windows in a turn",
            received=f"{got} windows",
            fix="leave out callbacks that stop the training, such as EarlyStopping",
        )
        if self._must_work:
            raise error
        self.failed = _told(error)


def drain(each: int) -> Function:
    """A train function that only takes ``each`` batches a call, compiled as Keras's own is."""
    import tensorflow as tf

    @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]
    def take(iterator: Any) -> Any:
        if each == 1:
            # Meets the end as a step of Keras's does: by an exception.
            iterator.get_next()
            return tf.constant(True)

        def another(left: Any, more: Any) -> tuple[Any, Any]:
            return left - 1, iterator.get_next_as_optional().has_value()

        first = iterator.get_next_as_optional().has_value()
        tf.while_loop(lambda left, more: tf.logical_and(left > 0, more), another, [each - 1, first])
        return first

    def function(iterator: Any) -> dict[str, Any]:
        if not take(iterator):
            raise StopIteration
        return {}

    return function


def _updates(model: Any) -> int:
    """How many steps the optimizer has counted; 0 for a model without one."""
    import keras

    iterations = getattr(model.optimizer, "iterations", None)
    return 0 if iterations is None else int(keras.ops.convert_to_numpy(iterations))


def _told(error: Exception) -> str:
    first = str(error).strip().splitlines()[:1]
    told = first[0] if first else "no message"
    return told if isinstance(error, UserError) else f"{type(error).__name__}: {told}"
