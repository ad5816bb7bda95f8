"""A Keras callback that takes the times of a training. Import it only where Keras is loaded.

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


class StepClock(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Times executions and epochs; create it just before ``fit``.

    Args:
        steps_per_epoch: Length of an epoch, to know the size of its last execution.
        evaluate: Called at the end of each epoch, its time left out; returns the accuracy.
        progress: Called with (epoch, steps done in it) after each execution.
    """

    def __init__(
        self,
        steps_per_epoch: int | None,
        evaluate: Callable[[], float | None],
        progress: Callable[[int, int], None],
    ) -> None:
        super().__init__()
        self.windows_ms: list[float] = []
        self.epochs: list[EpochTime] = []
        self.first_step_s: float | None = None
        self._length = steps_per_epoch
        self._evaluate = evaluate
        self._progress = progress
        self._epoch = 0
        self._done = 0
        self._paused_s = 0.0
        self._test_begun = 0.0
        self._begun = time.perf_counter()
        self._last = self._begun

    @property
    def train_s(self) -> float:
        """Time since creation, less the evaluations."""
        return time.perf_counter() - self._begun - self._paused_s

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._epoch = epoch
        self._done = 0
        self._last = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        now = time.perf_counter()
        # Keras names the last step an execution may reach, also where the data ends before it.
        reached = batch + 1 if self._length is None else min(batch + 1, self._length)
        steps = reached - self._done
        if self.first_step_s is None:
            self.first_step_s = now - self._last
        elif steps > 0:
            self.windows_ms.append((now - self._last) * 1000 / steps)
        self._done = reached
        self._progress(self._epoch, reached)
        self._last = time.perf_counter()

    def on_test_begin(self, logs: object = None) -> None:
        self._test_begun = time.perf_counter()

    def on_test_end(self, logs: object = None) -> None:
        self._paused_s += time.perf_counter() - self._test_begun

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        train_s = self.train_s
        paused = time.perf_counter()
        accuracy = self._evaluate()
        self._paused_s += time.perf_counter() - paused
        self.epochs.append(EpochTime(train_s, accuracy))
