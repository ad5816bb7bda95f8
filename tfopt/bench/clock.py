"""Keras callbacks that take the times of a training. Import them only where Keras is loaded.

Guarantees: Keras turns the logs into floats after every execution, so each time is read after
the device has finished; evaluation between epochs is not counted as training; the first
execution, which traces and compiles, is kept apart from the step windows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import keras


@dataclass(frozen=True)
class EpochTime:
    """Training time up to the end of an epoch, and the test accuracy there."""

    train_s: float
    test_accuracy: float | None


class _Executions(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Tells how many steps each execution took, and how long."""

    def __init__(self, steps_per_epoch: int | None) -> None:
        super().__init__()
        self._length = steps_per_epoch
        self._epoch = 0
        self._done = 0
        self._last = time.perf_counter()

    def took(self, seconds: float, steps: int) -> None:
        """An execution has ended; called with no steps where Keras ran past the data's end."""
        raise NotImplementedError

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._epoch = epoch
        self._done = 0
        self._last = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        seconds = time.perf_counter() - self._last
        # Keras names the last step an execution may reach, also where the data ends before it.
        reached = batch + 1 if self._length is None else min(batch + 1, self._length)
        steps, self._done = reached - self._done, reached
        self.took(seconds, steps)
        self._last = time.perf_counter()


class StepClock(_Executions):
    """Times executions and epochs; create it just before ``fit``.

    Args:
        steps_per_epoch: Length of an epoch, to know the size of its last execution.
        evaluate: Called with the epoch at its end, its time left out; returns the accuracy.
        progress: Called with (epoch, steps done in it) after each execution.
    """

    def __init__(
        self,
        steps_per_epoch: int | None,
        evaluate: Callable[[int], float | None],
        progress: Callable[[int, int], None],
    ) -> None:
        super().__init__(steps_per_epoch)
        self.windows_ms: list[float] = []
        self.epochs: list[EpochTime] = []
        self.first_step_s: float | None = None
        self._evaluate = evaluate
        self._progress = progress
        self._paused_s = 0.0
        self._test_begun = 0.0
        self._begun = self._last

    @property
    def train_s(self) -> float:
        """Time since creation, less the evaluations."""
        return time.perf_counter() - self._begun - self._paused_s

    def took(self, seconds: float, steps: int) -> None:
        if self.first_step_s is None:
            self.first_step_s = seconds
        elif steps > 0:
            self.windows_ms.append(seconds * 1000 / steps)
        self._progress(self._epoch, self._done)

    def on_test_begin(self, logs: object = None) -> None:
        self._test_begun = time.perf_counter()

    def on_test_end(self, logs: object = None) -> None:
        self._paused_s += time.perf_counter() - self._test_begun

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        train_s = self.train_s
        paused = time.perf_counter()
        accuracy = self._evaluate(epoch)
        self._paused_s += time.perf_counter() - paused
        self.epochs.append(EpochTime(train_s, accuracy))


class WindowClock(_Executions):
    """Gathers executions into windows until there are enough, then stops the training.

    A window is long enough that reading the clock and whatever happens once in some steps does
    not matter. The time between two epochs (a new iterator, callbacks) is kept apart.

    Args:
        steps_per_epoch: Length of an epoch, to know the size of its last execution.
        windows: How many are enough.
        window_ms: What each lasts at least.
        warm_up_s: Time after the first execution that is not counted.
        on_steady: Called once when the warm-up is over, its time counted nowhere.
        on_enough: Called when the last window is full.
    """

    def __init__(
        self,
        steps_per_epoch: int | None,
        *,
        windows: int,
        window_ms: float,
        warm_up_s: float,
        on_steady: Callable[[], None] = lambda: None,
        on_enough: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(steps_per_epoch)
        self.windows_ms: list[float] = []
        self.steps: list[int] = []
        self.between_epochs_ms: list[float] = []
        self.first_step_s: float | None = None
        self.warm_up_s = 0.0
        self._wanted = windows
        self._window_ms = window_ms
        self._least_warm_up_s = warm_up_s
        self._on_steady = on_steady
        self._on_enough = on_enough
        self._gathered_ms = 0.0
        self._gathered_steps = 0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if epoch > 0 and self._warm:
            self.between_epochs_ms.append((time.perf_counter() - self._last) * 1000)
        super().on_epoch_begin(epoch, logs)

    def took(self, seconds: float, steps: int) -> None:
        if self._warm:
            if steps > 0:
                self._gather(seconds * 1000, steps)
            return
        if self.first_step_s is None:
            self.first_step_s = seconds
        else:
            self.warm_up_s += seconds
        if self.warm_up_s >= self._least_warm_up_s:
            self._on_steady()

    @property
    def _warm(self) -> bool:
        return self.first_step_s is not None and self.warm_up_s >= self._least_warm_up_s

    def _gather(self, elapsed_ms: float, steps: int) -> None:
        self._gathered_ms += elapsed_ms
        self._gathered_steps += steps
        if self._gathered_ms < self._window_ms:
            return
        self.windows_ms.append(self._gathered_ms / self._gathered_steps)
        self.steps.append(self._gathered_steps)
        self._gathered_ms, self._gathered_steps = 0.0, 0
        if len(self.windows_ms) >= self._wanted:
            self.model.stop_training = True
            self._on_enough()
