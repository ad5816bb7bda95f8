"""Mark the steps of a training, with their time, examples and wait for input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.errors import UserError
from tfopt.monitor.readings import StepMark
from tfopt.resume.position import running_fit

_MARK_S = 1.0  # the shortest mark


class StepMarks:
    """Mark the steps of one ``fit``, without evaluation and callbacks between epochs.

    Args:
        keep: Called with each mark.
        clock: Returns seconds.
        waited: Returns the input wait of all steps so far; None if it is not measured.
    """

    def __init__(
        self,
        keep: Callable[[StepMark], object],
        clock: Callable[[], float],
        waited: Callable[[], float | None],
    ) -> None:
        self.steps = 0
        """The steps of the whole training."""
        self._keep, self._clock, self._waited = keep, clock, waited
        self._compiled = False
        self._batch_size: int | None = None
        self._last_batch_size: int | None = None
        self._epoch_steps: int | None = None
        self._done = 0
        self._open: tuple[float, float, int, int] | None = None

    def begin(self, batches: tuple[int | None, int | None], epoch_steps: int | None) -> None:
        """Set the sizes of batches and of the last one, and the steps of an epoch."""
        self._batch_size, self._last_batch_size = batches
        self._epoch_steps = epoch_steps

    def pause(self) -> None:
        """End the open mark, before evaluation or callbacks."""
        self._close(self._clock())
        self._open = None

    def begin_step(self, batch: int) -> None:
        """Begin a call of the training function, in a resumed epoch at a later batch."""
        if self._open is None:
            self._done = batch
            self._open = (self._clock(), self._waited() or 0.0, self._done, self.steps)

    def end_step(self, batch: int) -> StepMark | None:
        """End the call, whose last batch is ``batch``; return a mark if one is due."""
        last = batch if self._epoch_steps is None else min(batch, self._epoch_steps - 1)
        self.steps += last + 1 - self._done
        self._done = last + 1
        now_s = self._clock()
        # The first call, which compiles, has a separate mark.
        is_due = not self._compiled or (self._open and now_s - self._open[0] >= _MARK_S)
        return self._close(now_s) if is_due else None

    def _close(self, now_s: float) -> StepMark | None:
        if self._open is None or self._open[3] == self.steps:
            return None
        begin_s, waited_before_s, done, steps = self._open
        waited_s, count = self._waited(), self.steps - steps
        mark = StepMark(
            now_s,
            count,
            now_s - begin_s,
            self._examples(done, count),
            None if waited_s is None else max(0.0, waited_s - waited_before_s),
        )
        self._compiled = True
        self._keep(mark)
        # The next one begins at its end: Python between two steps counts.
        self._open = (now_s, waited_s or 0.0, self._done, self.steps)
        return mark

    def _examples(self, done: int, count: int) -> int | None:
        if self._batch_size is None:
            return None
        examples = self._batch_size * count
        if self._last_batch_size and done + count == self._epoch_steps:
            examples += self._last_batch_size - self._batch_size
        return examples


def batch_sizes(model: Any) -> tuple[int | None, int | None]:
    """Return the batch size of the running ``fit``, and that of a smaller last batch."""
    try:
        adapter = running_fit(model).epoch_iterator.data_adapter
    except UserError:
        return None, None
    size = adapter.batch_size
    partial = adapter.partial_batch_size if adapter.has_partial_batch else None
    return (int(size) if size else None), (int(partial) if partial else None)
