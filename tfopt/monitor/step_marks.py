"""Mark a training's steps, with their time, their examples and their wait for input.

No clock is read here: its value is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.errors import UserError
from tfopt.monitor.readings import StepMark
from tfopt.resume.position import running_fit

Waited = Callable[[], float | None]
"""Return the seconds that all steps so far have waited; None where that is not measured."""


class StepMarks:
    """Mark the steps of one ``fit``, without evaluation and what callbacks do between epochs."""

    def __init__(self, every_s: float, keep: Callable[[StepMark], object]) -> None:
        self.steps = 0
        """The steps of the whole training."""
        self._every_s = every_s
        self._keep = keep
        self._compiled = False
        self._batch_size: int | None = None
        self._last_batch_size: int | None = None
        self._epoch_steps: int | None = None
        self._done = 0
        self._open: tuple[float, float, int, int] | None = None

    def begin(self, batches: tuple[int | None, int | None], epoch_steps: int | None) -> None:
        """Set the size of a batch and of the last one, and the steps of an epoch."""
        self._batch_size, self._last_batch_size = batches
        self._epoch_steps = epoch_steps

    def epoch(self) -> None:
        """Count the steps from 0 again."""
        self._open, self._done = None, 0

    def pause(self, now_s: float, waited: Waited) -> None:
        """End the open mark: no training follows."""
        self._close(now_s, waited)
        self._open = None

    def begin_step(self, batch: int, now_s: float, waited: Waited) -> None:
        """Begin a call of the training function; a resumed epoch begins within."""
        if self._open is None:
            self._done = batch
            self._open = (now_s, waited() or 0.0, self._done, self.steps)

    def end_step(self, batch: int, now_s: float, waited: Waited) -> StepMark | None:
        """End the call, whose last batch is ``batch``; return a mark where one is due."""
        last = batch if self._epoch_steps is None else min(batch, self._epoch_steps - 1)
        self.steps += last + 1 - self._done
        self._done = last + 1
        # The very first call compiles: it gets its own mark.
        if self._open is not None and (
            not self._compiled or now_s - self._open[0] >= self._every_s
        ):
            return self._close(now_s, waited)
        return None

    def _close(self, now_s: float, waited: Waited) -> StepMark | None:
        if self._open is None or self._open[3] == self.steps:
            return None
        begun_s, had_waited_s, done, steps = self._open
        waited_s = waited()
        count = self.steps - steps
        mark = StepMark(
            now_s,
            count,
            now_s - begun_s,
            self._examples(done, count),
            None if waited_s is None else max(0.0, waited_s - had_waited_s),
        )
        self._compiled = True
        self._keep(mark)
        # The next one begins where this one ended: Python between two steps is a part of them.
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
    """Return the size of a batch of the ``fit`` that runs, and of the last one if it is smaller.

    Keras hands its data to no callback: see ``running_fit``.
    """
    try:
        adapter = running_fit(model).epoch_iterator.data_adapter
    except UserError:
        return None, None
    size = adapter.batch_size
    partial = adapter.partial_batch_size if adapter.has_partial_batch else None
    return (int(size) if size else None), (int(partial) if partial else None)
