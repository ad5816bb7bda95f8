"""Monitor: a callback that samples the machine while ``fit`` runs, and says what held it up.

Guarantees: the weights are those of the training without it; it never ends a training: a disk that
is full, a port that is taken or a driver that is gone is one warning, and the rest goes on. A
training that ends by an error leaves its recording, and no thread for longer than the callback
lives.

This file imports Keras at its top, since a callback must derive from Keras's own: import it inside
functions.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from os import PathLike
from typing import Any

import keras

from tfopt.distribute.worker_times import measure, seconds_waited
from tfopt.monitor.findings.findings import Finding, findings
from tfopt.monitor.outlets.prometheus import LOOPBACK, serving
from tfopt.monitor.outlets.tensorboard import TensorBoardScalars
from tfopt.monitor.readings import Recording, StepMark
from tfopt.monitor.sample_files import CsvLog, write_parquet
from tfopt.monitor.sampler import Sampler, sampling
from tfopt.monitor.step_marks import StepMarks, batch_sizes, checked

# A mark a second is as fine as the findings look.
_MARK_S = 1.0
# A training that is killed loses this much of a Parquet file, and nothing of a CSV one.
_FILE_S = 60.0
_NOTHING = Recording((), (), "nothing was sampled")


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """A callback for ``model.fit``: samples GPUs and host, and marks the steps' time and waits.

    Afterwards, and while it runs, ``recording`` holds the samples and ``findings()`` reads them.
    Nothing is printed unless ``show`` is set. Of several workers each has its own Monitor, and
    writes files of its own.

    The step is compiled anew for it, once for each ``fit``, with two readings of the clock around
    the fetch of a batch: that is what a step waits for its input. Of data whose batches' size Keras
    does not know (a generator, most datasets with a smaller last batch), examples are not counted.

    Args:
        hz: Samples a second, from 0.1 to 10.
        log_dir: TensorBoard scalars go into ``monitor`` below it.
        file: The samples, as .csv (written as they come) or .parquet (each minute, and at the end).
        prometheus_port: Serves the newest sample there; 0 finds a free port, ``port`` tells it.
        prometheus_host: The address it listens on; others than loopback show it to the network.
        show: Print the findings at the end.
    """

    def __init__(
        self,
        *,
        hz: float = 1.0,
        log_dir: str | PathLike[str] | None = None,
        file: str | PathLike[str] | None = None,
        prometheus_port: int | None = None,
        prometheus_host: str = LOOPBACK,
        show: bool = False,
    ) -> None:
        super().__init__()
        self.settings = checked(hz, log_dir, file, prometheus_port, prometheus_host, show)
        self.port: int | None = None
        """Where Prometheus finds it, while it is served."""
        self._stack = ExitStack()
        self._sampler: Sampler | None = None
        self._scalars: TensorBoardScalars | None = None
        self._steps = StepMarks(_MARK_S, self._mark)
        self._ended = _NOTHING
        self._measured = False
        self._file_s = 0.0
        self._warned: set[str] = set()

    @property
    def recording(self) -> Recording:
        """What was sampled in this ``fit``, or in the last one."""
        return self._ended if self._sampler is None else self._sampler.recording()

    def findings(self) -> list[Finding]:
        """What the rules find in it, the most serious first."""
        return findings(self.recording)

    def on_train_begin(self, logs: Any = None) -> None:
        self._end()
        self._stack, self._steps = ExitStack(), StepMarks(_MARK_S, self._mark)
        # A training that an error ends never comes to on_train_end.
        weakref.finalize(self, self._stack.close)
        self._try("sampling", self._begin_sampling)
        self._try("measuring the wait for input", self._begin_measuring)
        if self._sampler is not None:
            self._try("TensorBoard", self._begin_tensorboard)
            self._try("Prometheus", self._begin_prometheus)
            self._try("writing the samples' file", self._begin_csv)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._steps.epoch()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._steps.begin_step(batch, time.perf_counter(), self._waited)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # That this is there keeps Keras from calling callbacks in another thread, too.
        mark = self._steps.end_step(batch, time.perf_counter(), self._waited)
        if mark is not None:
            self._try("writing to TensorBoard", lambda: self._write_scalars(mark))
            if mark.ended_s - self._file_s >= _FILE_S:
                self._file_s = mark.ended_s
                self._try("writing the samples' file", self._write_parquet)

    def on_test_begin(self, logs: Any = None) -> None:
        self._steps.pause(time.perf_counter(), self._waited)
        self._compile_with_clock(False)

    def on_test_end(self, logs: Any = None) -> None:
        self._compile_with_clock(True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._steps.pause(time.perf_counter(), self._waited)

    def on_train_end(self, logs: Any = None) -> None:
        self._end()
        if self._measured:
            self._compile_with_clock(False)
            self._measured = False
            self.model.train_function = None  # the next fit compiles it without the clock
        self._try("writing the samples' file", self._write_parquet)
        if self.settings.show:
            self._try("showing the findings", self._show)

    def get_state(self) -> dict[str, Any]:
        """Nothing: a training that goes on is sampled anew."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """See ``get_state``."""

    def _begin_sampling(self) -> None:
        self._sampler = self._stack.enter_context(
            sampling(os.getpid(), clock=time.perf_counter, period_s=1 / self.settings.hz)
        )
        self._file_s = time.perf_counter()
        self._steps.begin(batch_sizes(self.model), self.params.get("steps"))

    def _begin_measuring(self) -> None:
        if self.model.run_eagerly:
            return
        measure(True)
        self._measured = True
        self.model.make_train_function(force=True)

    def _compile_with_clock(self, on: bool) -> None:
        if self._measured:
            measure(on)

    def _begin_csv(self) -> None:
        file, sampler = self.settings.file, self._sampler
        if file is not None and sampler is not None and file.suffix == ".csv":
            self._stack.callback(CsvLog(file, sampler).close)

    def _begin_tensorboard(self) -> None:
        if self.settings.log_dir is not None:
            self._scalars = TensorBoardScalars(self.settings.log_dir)
            self._stack.callback(self._scalars.close)

    def _begin_prometheus(self) -> None:
        if self.settings.prometheus_port is not None:
            reference = weakref.ref(self)
            self.port = self._stack.enter_context(
                serving(
                    lambda: _NOTHING if (own := reference()) is None else own.recording,
                    self.settings.prometheus_port,
                    self.settings.prometheus_host,
                )
            )

    def _waited(self) -> float | None:
        return seconds_waited() if self._measured else None

    def _mark(self, mark: StepMark) -> None:
        if self._sampler is not None:
            self._sampler.mark(mark)

    def _write_scalars(self, mark: StepMark) -> None:
        newest = None if self._sampler is None else self._sampler.newest()
        if self._scalars is not None and newest is not None:
            self._scalars.write(self._steps.steps, newest, mark)

    def _write_parquet(self) -> None:
        """All of it anew, as Parquet cannot grow."""
        file = self.settings.file
        if file is not None and file.suffix == ".parquet" and self.recording.samples:
            write_parquet(self.recording, file)

    def _show(self) -> None:
        from rich.console import Console

        from tfopt.monitor.outlets.live_view import findings_view

        Console().print(findings_view(self.findings()))

    def _end(self) -> None:
        """Nothing is sampled any more; what was stays."""
        self._ended, self._sampler, self._scalars, self.port = self.recording, None, None, None
        self._try("ending", self._stack.close)

    def _try(self, what: str, work: Callable[[], Any]) -> None:
        """A training goes on, whatever breaks in here; each is told once."""
        try:
            work()
        except Exception as error:
            if what not in self._warned:
                self._warned.add(what)
                with suppress(Warning):  # also where warnings are errors
                    warnings.warn(
                        f"tfopt.Monitor: {what} failed, the training goes on: {error}",
                        RuntimeWarning,
                        stacklevel=3,
                    )
