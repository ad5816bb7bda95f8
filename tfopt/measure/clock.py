"""Keras callbacks that take the times of a training. Import them only where Keras is loaded.

Keras turns the logs into floats after every execution, so each time is read after the device has
finished. Evaluation is not counted, and the first execution, which compiles, is kept apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import keras

from tfopt.report.training import Epoch

# A cache that is not full by then belongs to a training of days, not to a measurement.
LONGEST_WARM_UP_S = 300.0


class _Executions(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """A callback that counts the steps of each execution and takes its time."""

    def __init__(self, steps_per_epoch: int | None) -> None:
        super().__init__()
        self._length = steps_per_epoch
        self._epoch = 0
        self._done = 0
        self._last = time.perf_counter()

    def took(self, seconds: float, steps: int) -> None:
        """Note an execution that has ended, with no steps where Keras ran past the data's end."""
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
    """Times the first execution and the epochs; create it just before ``fit``.

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
        self.epochs: list[Epoch] = []
        self.first_step_s: float | None = None
        self._evaluate = evaluate
        self._progress = progress
        self._paused_s = 0.0
        self._test_begun = 0.0
        self._begun = self._last

    @property
    def train_s(self) -> float:
        """Return the time since creation, less the evaluations."""
        return time.perf_counter() - self._begun - self._paused_s

    def took(self, seconds: float, steps: int) -> None:
        if self.first_step_s is None:
            self.first_step_s = seconds
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
        self.epochs.append(Epoch(round(train_s, 4), accuracy))


class WindowClock(_Executions):
    """Gathers executions into windows until there are enough, then stops the training.

    A window is long enough that reading the clock and whatever happens once in some steps does
    not matter. The time between two epochs (a new iterator, callbacks) is kept apart. The first
    epoch's last execution is in no window: its batch may be smaller, and XLA and cuDNN prepare
    anew for another shape, which took three seconds for a step of two milliseconds on an H200.

    Args:
        steps_per_epoch: Length of an epoch, to know the size of its last execution.
        windows: How many are enough.
        window_ms: What each lasts at least.
        warm_up_s: Time after the first execution that is not counted.
        warm_up_epochs: Whole epochs that are not counted either, as the first fills a cache; up to
            ``LONGEST_WARM_UP_S``.
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
        warm_up_epochs: int = 0,
        on_steady: Callable[[], None] = lambda: None,
        on_enough: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(steps_per_epoch)
        self.windows_ms: list[float] = []
        self.steps: list[int] = []
        self.between_epochs_ms: list[float] = []
        self.epoch_examples: list[float] = []
        self.first_step_s: float | None = None
        self.warm_up_s = 0.0
        self._wanted = windows
        self._window_ms = window_ms
        self._least_warm_up_s = warm_up_s
        self._warm_up_epochs = warm_up_epochs
        self._on_steady = on_steady
        self._on_enough = on_enough
        self._gathered_ms = 0.0
        self._gathered_steps = 0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        if epoch > 0 and self._warm:
            self.between_epochs_ms.append((time.perf_counter() - self._last) * 1000)
        elif self._warm_up_epochs and epoch == self._warm_up_epochs and self._warm_long_enough:
            self._on_steady()
        super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        examples = _examples_seen(self.model)
        # An epoch that is broken off because there are enough windows is no whole one, and where
        # the length is not known, neither is how many steps the last execution had.
        whole = self._length is not None and len(self.windows_ms) < self._wanted
        if examples is not None and whole and self._done:
            self.epoch_examples.append(examples / self._done)

    def took(self, seconds: float, steps: int) -> None:
        if self._warm:
            first_last = self._epoch == 0 and self._done == self._length
            if steps > 0 and not first_last:
                self._gather(seconds * 1000, steps)
            return
        if self.first_step_s is None:
            self.first_step_s = seconds
        else:
            self.warm_up_s += seconds
        self._begin_if_warm()

    def _begin_if_warm(self) -> None:
        if self._warm:
            self._on_steady()

    @property
    def _warm(self) -> bool:
        enough = self.warmed_up_whole or self.warm_up_s >= LONGEST_WARM_UP_S
        return self._warm_long_enough and enough

    @property
    def warmed_up_whole(self) -> bool:
        """Return whether the epochs of the warm-up are over."""
        return self._epoch >= self._warm_up_epochs

    @property
    def _warm_long_enough(self) -> bool:
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


def _examples_seen(model: keras.Model) -> float | None:
    """Return how many examples this epoch had, as Keras itself counts them to average the loss.

    A last batch that is not full counts for what it holds. None where the model does not count.
    """
    count = getattr(getattr(model, "_loss_tracker", None), "count", None)
    seen = 0.0 if count is None else float(count.numpy())
    return seen or None
