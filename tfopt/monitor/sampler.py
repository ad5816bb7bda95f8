"""Sample a process, its machine and its GPUs in a thread.

Sampling never raises, and takes at most a hundredth of the time.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar

import psutil

from tfopt.errors import UserError, require_within
from tfopt.monitor.gpus import GpuWatch, Wanted
from tfopt.monitor.host import host_poller
from tfopt.monitor.readings import HostReading, Recording, Sample, StepMark

PERIOD_S = 0.25
_LONGEST_PAUSE_S = 2.0
_PAUSES_A_SAMPLE = 99
_HANG_S = 10.0  # after which a driver counts as hanging
_FASTEST_S, _SLOWEST_S = 0.1, 3600.0  # between samples for a person
_MOST_KEPT = 20_000  # about 40 MiB for one GPU: hours at one sample per second

T = TypeVar("T")


class Sampler:
    """Take samples: one at each call of ``take``, and regularly while it is running.

    The session with NVML is opened in the caller's thread, which a hanging driver blocks, as it
    would block TensorFlow.
    """

    def __init__(
        self, process_id: int | None, clock: Callable[[], float], wanted: Wanted = "visible"
    ) -> None:
        self._clock = clock
        self._host = host_poller(process_id, clock)
        self._gpus = GpuWatch(wanted)
        self._listeners: list[Callable[[Any], object]] = []
        self._samples: deque[Sample] = deque(maxlen=_MOST_KEPT)
        self._marks: deque[StepMark] = deque(maxlen=_MOST_KEPT)
        self._trained: StepMark | None = None
        self._busy = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, period_s: float) -> None:
        """Take a sample, and more in a thread until ``close``."""
        self.take()
        self._thread = threading.Thread(
            target=self._run, args=(period_s,), name="tfopt-sampler", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, and the session with NVML, unless it hangs."""
        self._ended.set()
        # Garbage collection may close it in its own thread, which ends.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_HANG_S)
            if self._thread.is_alive():
                _warn(
                    f"NVML has not replied for {_HANG_S:.0f} s, and its thread is left behind. The "
                    "NVIDIA driver or a GPU hangs; see the kernel's log (dmesg)."
                )
                return
        self._gpus.close()

    def take(self) -> Sample:
        """Take, store and return a sample; an empty one while a driver hangs in another thread."""
        if not self._busy.acquire(timeout=_HANG_S):
            return Sample(self._clock())
        try:
            readings = self._gpus.read()
            now = datetime.now().astimezone()
            host = HostReading(**self._host.values())
            sample = Sample(self._clock(), host, readings, now)
            self._samples.append(sample)
        finally:
            self._busy.release()
        self._notify(sample)
        return sample

    def mark(self, mark: StepMark) -> None:
        """Store a mark of the training."""
        self._marks.append(mark)
        self._trained = mark if self._trained is None else self._trained.joined(mark)
        self._notify(mark)

    def listen(self, listener: Callable[[Any], object]) -> None:
        """Call ``listener`` with each new sample or mark, in the thread that took it.

        A listener that raises is removed, with a warning.
        """
        self._listeners.append(listener)

    def recording(self, begin_s: float = -math.inf, end_s: float = math.inf) -> Recording:
        """Return the samples and marks between two times of the clock, inclusive."""
        return Recording(
            samples=_between(self._samples, "at_s", begin_s, end_s),
            gpus=self._gpus.gpus(),
            no_gpu_reason=self._gpus.no_gpu_reason,
            steps=_between(self._marks, "ended_s", begin_s, end_s),
            trained=self._trained,
            host_missing=dict(self._host.missing),
        )

    def _run(self, period_s: float) -> None:
        pause_s = period_s
        while not self._ended.wait(pause_s):
            begin_s = self._clock()
            self.take()
            # A slow driver is polled less often.
            slow_s = min(_PAUSES_A_SAMPLE * (self._clock() - begin_s), _LONGEST_PAUSE_S)
            pause_s = max(period_s, slow_s)

    def _notify(self, moment: Sample | StepMark) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(moment)
            except Exception as error:  # such as a full disk
                self._listeners.remove(listener)
                _warn(f"{listener!r} failed and gets no more samples: {error}")


def _between(moments: deque[T], at: str, begin_s: float, end_s: float) -> tuple[T, ...]:
    copy = tuple(moments)  # another thread may append
    return tuple(moment for moment in copy if begin_s <= getattr(moment, at) <= end_s)


def _warn(message: str) -> None:
    with suppress(RuntimeWarning):  # if warnings are errors
        warnings.warn(message, RuntimeWarning, stacklevel=3)


@contextmanager
def sampling(
    process_id: int | None,
    *,
    clock: Callable[[], float],
    wanted: Wanted = "visible",
    period_s: float = PERIOD_S,
) -> Iterator[Sampler]:
    """Sample a process, its machine and GPUs in a thread while the block runs.

    Args:
        process_id: The process to sample; None for none.
        clock: A function that returns seconds, also called from the thread.
        wanted: The GPUs by their indices in CUDA's order; or "visible", those of
            CUDA_VISIBLE_DEVICES; or "all" of the machine, with parts of GPUs (MIG).
        period_s: Seconds between samples.

    Example:
        >>> with sampling(os.getpid(), clock=time.perf_counter) as sampler:
        ...     model.fit(x, y)
        >>> sampler.recording().samples[-1].host.rss_mib
    """
    with closing(Sampler(process_id, clock, wanted)) as sampler:
        sampler.start(period_s)
        yield sampler


@contextmanager
def watching(
    interval_s: float, process_id: int | None, clock: Callable[[], float]
) -> Iterator[tuple[Sampler, Iterator[Sample]]]:
    """Yield a sampler of all GPUs, the host and a process, and its samples at each interval."""
    require_within("interval between samples", interval_s, _FASTEST_S, _SLOWEST_S, "seconds")
    if process_id is not None and not psutil.pid_exists(process_id):
        raise UserError(
            "There is no process with this id.",
            expected="the id of a running process",
            received=str(process_id),
        )
    with closing(Sampler(process_id, clock, "all")) as sampler:
        yield sampler, _samples(sampler, interval_s)


def _samples(sampler: Sampler, interval_s: float) -> Iterator[Sample]:
    while True:
        yield sampler.take()
        time.sleep(interval_s)
