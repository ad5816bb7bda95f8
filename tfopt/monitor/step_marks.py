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
        self._examples: Any = None
        self._open: StepMark | None = None

    def begin(self, batches: tuple[int | None, int | None], epoch_steps: int | None) -> None:
        """Set the sizes of batches and of the last one, and the steps of an epoch."""
        self._batch_size, self._last_batch_size = batches
        self._examples = None if self._batch_size is None else 0
        self._epoch_steps = epoch_steps

    def pause(self) -> None:
        """End the open mark, before evaluation or callbacks."""
        self._close()
        self._open = None

    def begin_step(self, batch: int) -> None:
        """Begin a call of the training function, in a resumed epoch at a later batch."""
        if self._open is None:
            self._done = batch
            self._open = self._so_far()

    def end_step(self, batch: int) -> StepMark | None:
        """End the call, whose last batch is ``batch``; return a mark if one is due."""
        last = batch if self._epoch_steps is None else min(batch, self._epoch_steps - 1)
        count, self._done = last + 1 - self._done, last + 1
        self.steps += count
        if self._batch_size is not None:
            self._examples += self._batch_size * count
            if self._last_batch_size and self._done == self._epoch_steps:
                self._examples += self._last_batch_size - self._batch_size
        # The first call, which compiles, has a separate mark.
        is_due = not self._compiled
        if self._open is not None:
            is_due |= self._clock() - self._open.ended_s >= _MARK_S
        return self._close() if is_due else None

    def _so_far(self) -> StepMark:
        """Return all steps until now as a mark; its seconds are those of the clock."""
        now_s = self._clock()
        return StepMark(now_s, self.steps, now_s, self._examples, self._waited())

    def _close(self) -> StepMark | None:
        if self._open is None or self._open.steps == self.steps:
            return None
        # The next one begins at its end: Python between two steps counts.
        begin, self._open = self._open, self._so_far()
        mark = self._open.since(begin)
        self._compiled = True
        self._keep(mark)
        return mark


def batch_sizes(model: Any) -> tuple[int | None, int | None]:
    """Return the batch size of the running ``fit``, and that of a smaller last batch."""
    try:
        adapter = running_fit(model).epoch_iterator.data_adapter
    except UserError:
        return None, None
    size = adapter.batch_size
    partial = adapter.partial_batch_size if adapter.has_partial_batch else None
    return (int(size) if size else None), (int(partial) if partial else None)
