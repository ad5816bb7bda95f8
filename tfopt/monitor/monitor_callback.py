"""A callback that samples the machine during ``fit``, and finds what slows the training down.

It never ends a training: any failure in it is one warning.

Importing this module imports Keras: import it inside functions.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from os import PathLike
from pathlib import Path
from typing import Any

import keras
from rich.console import Console

from tfopt.distribute.launch.place import place_in_cluster
from tfopt.errors import UserError, require_within
from tfopt.files import target_of
from tfopt.keras_internals import last_step
from tfopt.monitor.findings import Finding, findings
from tfopt.monitor.input_wait import count_input_wait, seconds_waited
from tfopt.monitor.outlets.prometheus import LOOPBACK, client_library, require_port, serving
from tfopt.monitor.outlets.tensorboard import write_scalars
from tfopt.monitor.outlets.terminal import findings_text
from tfopt.monitor.readings import Recording, StepMark
from tfopt.monitor.sample_files import CsvLog
from tfopt.monitor.sampler import Sampler, sampling
from tfopt.monitor.step_marks import StepMarks, batch_sizes

_SLOWEST_HZ, _FASTEST_HZ = 0.1, 10.0
_NOTHING = Recording((), (), "nothing was sampled")


class Monitor(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """A callback for ``model.fit`` that samples GPUs and host, and times steps and their waits.

    ``recording`` has the samples and ``findings()`` the findings, during ``fit`` and afterwards.
    Each of several workers has a Monitor, and writes separate files. The trained weights do not
    change.

    The step is compiled again, once for each ``fit``, with two readings of the clock around the
    fetch of a batch, which measure its wait for input. Examples are not counted if Keras does not
    know the batch size (a generator, most datasets with a smaller last batch).

    Args:
        hz: Samples per second, from 0.1 to 10.
        log_dir: The folder for TensorBoard scalars, in its sub-folder ``monitor``.
        file: A CSV file for the samples, written immediately: one table, with kinds of rows in
            the column ``row``.
        prometheus_port: The port to serve the newest sample; 0 finds a free one, see ``port``.
        prometheus_host: The address to listen on; others than loopback are open to the network.
        show: Print the findings at the end.

    Example:
        >>> monitor = tfopt.Monitor(file="samples.csv")
        >>> model.fit(x, y, epochs=40, callbacks=[monitor])
        >>> for finding in monitor.findings():
        ...     print(finding, finding.action)
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
        require_within("`hz`", hz, _SLOWEST_HZ, _FASTEST_HZ, "samples a second")
        if prometheus_port is not None:
            require_port(prometheus_port)
            client_library()
        place = place_in_cluster()
        worker = "" if place is None or place.workers == 1 else f"-{place.kind}-{place.index}"
        self._hz = float(hz)
        self._log_dir = None if log_dir is None else Path(log_dir).expanduser() / f"monitor{worker}"
        self._file = None if file is None else _samples_file(file, worker)
        self._prometheus = (prometheus_port, prometheus_host)
        self._shows = show
        self.port: int | None = None
        """The port of the Prometheus endpoint while it is served."""
        self._stack = ExitStack()
        self._sampler: Sampler | None = None
        self._scalars: Any = None
        self._steps = StepMarks(self._keep, time.perf_counter, self._waited)
        self._ended = _NOTHING
        self._measured = False
        self._warned: set[str] = set()

    @property
    def recording(self) -> Recording:
        """Return the recording of the current ``fit``, or of the last one."""
        return self._ended if self._sampler is None else self._sampler.recording()

    def findings(self) -> list[Finding]:
        """Return the findings in the recording, the most serious first."""
        return findings(self.recording)

    def on_train_begin(self, logs: Any = None) -> None:
        self._end()
        self._stack = ExitStack()
        self._steps = StepMarks(self._keep, time.perf_counter, self._waited)
        # An error ends a training without on_train_end.
        weakref.finalize(self, self._stack.close)
        self._try("sampling", self._begin_sampling)
        self._try("measuring the wait for input", self._begin_measuring)
        if self._sampler is not None:
            self._try("TensorBoard", self._begin_tensorboard)
            self._try("Prometheus", self._begin_prometheus)
            self._try("writing the samples' file", self._begin_csv)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._steps.begin_step(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With this method Keras does not call callbacks in another thread.
        mark = self._steps.end_step(last_step(self.model, batch))
        if mark is not None:
            self._try("writing to TensorBoard", lambda: self._write_scalars(mark))

    def on_test_begin(self, logs: Any = None) -> None:
        self._steps.pause()
        count_input_wait(False)

    def on_test_end(self, logs: Any = None) -> None:
        count_input_wait(self._measured)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._steps.pause()

    def on_train_end(self, logs: Any = None) -> None:
        self._end()
        if self._measured:
            count_input_wait(False)
            self._measured = False
            self.model.train_function = None  # the next fit compiles it without the clock
        if self._shows:
            shown = findings_text(self.findings())
            self._try("showing the findings", lambda: Console().print(shown))

    def get_state(self) -> dict[str, Any]:
        """Return an empty state: a resumed training has a new recording."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Ignore the state, see ``get_state``."""

    def _begin_sampling(self) -> None:
        self._sampler = self._stack.enter_context(
            sampling(os.getpid(), clock=time.perf_counter, period_s=1 / self._hz)
        )
        self._steps.begin(batch_sizes(self.model), self.params.get("steps"))

    def _begin_measuring(self) -> None:
        if self.model.run_eagerly:
            return
        count_input_wait(True)
        self._measured = True
        self.model.make_train_function(force=True)

    def _begin_csv(self) -> None:
        if self._file is not None and self._sampler is not None:
            self._stack.callback(CsvLog(self._file, self._sampler).close)

    def _begin_tensorboard(self) -> None:
        import tensorflow as tf

        if self._log_dir is not None:
            writer = tf.summary.create_file_writer(str(self._log_dir))
            self._scalars = self._stack.enter_context(closing(writer))

    def _begin_prometheus(self) -> None:
        port, host = self._prometheus
        reference = weakref.ref(self)

        def recording() -> Recording:
            return _NOTHING if (own := reference()) is None else own.recording

        if port is not None:
            self.port = self._stack.enter_context(serving(recording, port, host))

    def _waited(self) -> float | None:
        return seconds_waited() if self._measured else None

    def _keep(self, mark: StepMark) -> None:
        if self._sampler is not None:
            self._sampler.mark(mark)

    def _write_scalars(self, mark: StepMark) -> None:
        samples = self.recording.samples
        if self._scalars is not None and samples:
            write_scalars(self._scalars, self._steps.steps, samples[-1], mark)

    def _end(self) -> None:
        """End the sampling, and keep the recording."""
        self._ended, self._sampler, self._scalars, self.port = self.recording, None, None, None
        self._try("ending", self._stack.close)

    def _try(self, what: str, work: Callable[[], Any]) -> None:
        """Run ``work``; its first error is a warning."""
        try:
            work()
        except Exception as error:
            if what not in self._warned:
                self._warned.add(what)
                with suppress(Warning):  # if warnings are errors
                    warnings.warn(
                        f"tfopt.Monitor: {what} failed, the training continues: {error}",
                        RuntimeWarning,
                        stacklevel=3,
                    )


def _samples_file(path: object, worker: str) -> Path:
    target = target_of(path)
    if target.suffix != ".csv":
        raise UserError(
            "The samples are written as CSV.",
            expected="a path that ends in .csv",
            received=str(path),
        )
    return target.with_name(f"{target.stem}{worker}{target.suffix}")
