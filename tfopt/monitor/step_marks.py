"""Counts a training's steps, their time, their examples and their wait, a mark every so often.

No clock is read here: its value is an argument.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfopt.errors import UserError, within
from tfopt.files import target_of
from tfopt.job.cluster_place import place_in_cluster
from tfopt.monitor.outlets.prometheus import require_client, require_port
from tfopt.monitor.readings import StepMark

# What ``tfopt.Monitor`` was asked for, checked before a training begins.
#
# Guarantees: a wrong argument, or a package that is not there, is told when the callback is made.
# A cluster's workers write beside each other, never into the same file.

SLOWEST_HZ, FASTEST_HZ = 0.1, 10.0


@dataclass(frozen=True)
class Settings:
    """Checked; ``log_dir`` and ``file`` are this worker's own."""

    hz: float
    log_dir: Path | None
    file: Path | None
    prometheus_port: int | None
    prometheus_host: str
    show: bool


def checked(
    hz: object,
    log_dir: object,
    file: object,
    prometheus_port: int | None,
    prometheus_host: str,
    show: bool,
) -> Settings:
    """Refuses what could not work."""
    if not isinstance(hz, int | float) or not within(hz, SLOWEST_HZ, FASTEST_HZ + 1e-9):
        raise UserError(
            "hz is not a rate to sample at.",
            expected=f"samples a second, from {SLOWEST_HZ} to {FASTEST_HZ:.0f}",
            received=repr(hz),
        )
    if prometheus_port is not None:
        require_port(prometheus_port)
        require_client()
    place = place_in_cluster()
    own = "" if place is None or place.workers == 1 else f"-{place.kind}-{place.index}"
    return Settings(
        float(hz),
        None if log_dir is None else _log_dir(log_dir, own),
        None if file is None else _file(file, own),
        prometheus_port,
        prometheus_host,
        show,
    )


def _log_dir(path: object, own: str) -> Path:
    """TensorBoard's own run below the folder, which need not be there yet."""
    if not isinstance(path, str | Path):
        raise UserError("log_dir is not a path.", expected="a text or a Path", received=repr(path))
    return Path(path).expanduser() / f"monitor{own}"


def _file(path: object, own: str) -> Path:
    target = target_of(path)
    if target.suffix not in (".csv", ".parquet"):
        raise UserError(
            "The samples' file has an ending that says no format.",
            expected="a path that ends in .csv or .parquet",
            received=str(path),
        )
    if target.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError(
            "A Parquet file needs the package pyarrow.",
            received="no pyarrow here",
            fix="pip install 'tfopt[parquet]', or write a .csv",
        )
    return target.with_name(f"{target.stem}{own}{target.suffix}")


# Seconds of all steps so far, None where that is not measured; asked where a mark begins or ends.
Waited = Callable[[], float | None]


class StepMarks:
    """The marks of one ``fit``; evaluation and what callbacks do between epochs is not in them."""

    def __init__(self, every_s: float, keep: Callable[[StepMark], object]) -> None:
        self.steps = 0
        """Of the whole training."""
        self._every_s = every_s
        self._keep = keep
        self._compiled = False
        self._batch_size: int | None = None
        self._last_batch_size: int | None = None
        self._epoch_steps: int | None = None
        self._done = 0
        self._open: tuple[float, float, int, int] | None = None

    def begin(self, batches: tuple[int | None, int | None], epoch_steps: int | None) -> None:
        """Of these sizes, the second one that of the last batch, and so many an epoch."""
        self._batch_size, self._last_batch_size = batches
        self._epoch_steps = epoch_steps

    def epoch(self) -> None:
        """Steps are counted from 0 again."""
        self._open, self._done = None, 0

    def pause(self, now_s: float, waited: Waited) -> None:
        """What comes now is no training."""
        self._close(now_s, waited)
        self._open = None

    def begin_step(self, batch: int, now_s: float, waited: Waited) -> None:
        """Before a call of the training function; a resumed epoch begins within."""
        if self._open is None:
            self._done = batch
            self._open = (now_s, waited() or 0.0, self._done, self.steps)

    def end_step(self, batch: int, now_s: float, waited: Waited) -> StepMark | None:
        """After it; ``batch`` is the number of the last batch in it. A mark, where one is due."""
        last = batch if self._epoch_steps is None else min(batch, self._epoch_steps - 1)
        self.steps += last + 1 - self._done
        self._done = last + 1
        # The very first call compiles: it is a mark of its own.
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
    """Of the ``fit`` that runs, a whole batch's size and the last one's if that is smaller.

    Keras hands its data to no callback: it is read off the frame of ``fit``.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        seen = frame.f_locals
        if frame.f_code.co_name == "fit" and seen.get("self") is model:
            adapter = getattr(seen.get("epoch_iterator"), "data_adapter", None)
            if adapter is None:
                return None, None
            size = adapter.batch_size
            partial = adapter.partial_batch_size if adapter.has_partial_batch else None
            return (int(size) if size else None), (int(partial) if partial else None)
        frame = frame.f_back
    return None, None
