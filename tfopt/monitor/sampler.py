"""Sample a process, its machine and its GPUs in a thread while something else runs.

Sampling never raises, never ends what it samples, and takes at most a hundredth of the time over
some seconds.
"""

from __future__ import annotations

import math
import threading
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from tfopt.monitor.gpus import GpuWatch, Wanted
from tfopt.monitor.host import WatchedHost
from tfopt.monitor.readings import Recording, Sample, StepMark

PERIOD_S = 0.25
_LONGEST_PAUSE_S = 2.0
_PAUSES_A_SAMPLE = 99
# Of the pauses that are due, these may wait: each second's first sample polls more metrics.
_DEFERRED_S = 1.0
# A driver that is in trouble may take seconds; one that takes longer never answers.
_LAST_ANSWER_S = 10.0
# A sample of one GPU and a few cores is about 2 KiB: some 40 MiB.
MOST = 20_000

Listener = Callable[[Sample], object]
T = TypeVar("T")


class History:
    """Keep the samples and marks of a training that may last for weeks, in limited memory.

    The older half of the samples is thinned to every second one, again and again; of marks two
    become one, so that their sums stay whole. It may be read in one thread while it grows in
    another.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._samples: list[Sample] = []
        self._marks: list[StepMark] = []

    def add(self, sample: Sample) -> None:
        """Keep a sample."""
        if len(self._samples) >= self._most:
            self._samples = _thinned(self._samples, lambda first, second: first)
        self._samples.append(sample)

    def mark(self, mark: StepMark) -> None:
        """Keep a mark."""
        if len(self._marks) >= self._most:
            self._marks = _thinned(self._marks, _joined)
        self._marks.append(mark)

    def samples(self, begun_s: float, ended_s: float) -> tuple[Sample, ...]:
        """Return the samples between two moments, these included."""
        return _between(self._samples, lambda sample: sample.at_s, begun_s, ended_s)

    def marks(self, begun_s: float, ended_s: float) -> tuple[StepMark, ...]:
        """Return the marks that ended between two moments, these included."""
        return _between(self._marks, lambda mark: mark.ended_s, begun_s, ended_s)

    def newest(self) -> Sample | None:
        """Return the last sample, if there is one."""
        return self._samples[-1] if self._samples else None


def _thinned(items: list[T], join: Callable[[T, T], T]) -> list[T]:
    """Return a new list, in which pairs of the older half are one: a reader sees either list."""
    old = len(items) // 4 * 2
    pairs = zip(items[:old:2], items[1:old:2], strict=True)
    return [join(*pair) for pair in pairs] + items[old:]


def _between(
    items: list[T], moment: Callable[[T], float], begun_s: float, ended_s: float
) -> tuple[T, ...]:
    first = bisect_left(items, begun_s, key=moment)
    return tuple(items[first : bisect_right(items, ended_s, key=moment)])


def _joined(first: StepMark, second: StepMark) -> StepMark:
    """Return both as one; a figure that either lacks is None."""

    def total(name: str) -> Any:
        values = (getattr(first, name), getattr(second, name))
        return None if None in values else sum(values)

    figures = ("steps", "seconds", "examples", "input_wait_s")
    return StepMark(second.ended_s, **{name: total(name) for name in figures})


class Sampler:
    """Take samples: one at each call of ``take``, and regularly while it is running."""

    def __init__(
        self,
        process_id: int | None,
        clock: Callable[[], float],
        gpus: GpuWatch | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._clock = clock
        self._host = WatchedHost(process_id, clock)
        self._gpus = gpus or GpuWatch(process_id, {}, clock)
        self._listeners = list(listeners)
        self._history = History()
        self._busy = threading.Lock()
        self._ended = threading.Event()

    def take(self) -> Sample:
        """Return a sample of now, and keep it.

        While a driver does not answer another thread, the sample is empty and is not kept.
        """
        if not self._busy.acquire(timeout=_LAST_ANSWER_S):
            return Sample(self._clock())
        try:
            readings = self._gpus.read()
            sample = Sample(self._clock(), self._host.read(), readings)
            self._history.add(sample)
        finally:
            self._busy.release()
        self._notify(sample)
        return sample

    def mark(self, mark: StepMark) -> None:
        """Keep a mark of the training that runs meanwhile."""
        self._history.mark(mark)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with each sample from now on, in the thread that took it.

        A listener that raises leaves a warning and is called no more.
        """
        self._listeners.append(listener)

    def newest(self) -> Sample | None:
        """Return the last sample that was taken."""
        return self._history.newest()

    def recording(self, begun_s: float = -math.inf, ended_s: float = math.inf) -> Recording:
        """Return what was sampled between two moments of the clock, these included."""
        return Recording(
            samples=self._history.samples(begun_s, ended_s),
            gpus=self._gpus.gpus(),
            no_gpu_reason=self._gpus.no_gpu_reason,
            steps=self.marks(begun_s, ended_s),
            host_missing=dict(self._host.missing),
        )

    def marks(self, begun_s: float = -math.inf, ended_s: float = math.inf) -> tuple[StepMark, ...]:
        """Return the marks between two moments of the clock, these included."""
        return self._history.marks(begun_s, ended_s)

    @contextmanager
    def running(self, period_s: float) -> Iterator[None]:
        """Take samples in a thread while the block runs, the first one at once in this thread."""
        self.take()
        thread = threading.Thread(
            target=self._run, args=(period_s,), name="tfopt-sampler", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._wait_for(thread)

    def _run(self, period_s: float) -> None:
        pause_s, owed_s = period_s, 0.0
        while not self._ended.wait(pause_s):
            begun = self._clock()
            self.take()
            owed_s = max(owed_s - pause_s, 0.0) + _PAUSES_A_SAMPLE * (self._clock() - begun)
            owed_s = min(owed_s, _LONGEST_PAUSE_S + _DEFERRED_S)
            # A driver that answers slowly is polled less often: the training goes first.
            pause_s = max(period_s, owed_s - _DEFERRED_S)

    def _notify(self, sample: Sample) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(sample)
            except Exception as error:  # a full disk, a viewer that broke: sampling goes on
                self._listeners.remove(listener)
                _warn(f"{listener!r} failed and gets no more of the samples: {error}")

    def _wait_for(self, thread: threading.Thread) -> None:
        if thread is threading.current_thread():
            return  # the block was garbage-collected in this thread, which ends by itself
        thread.join(_LAST_ANSWER_S)
        if thread.is_alive():
            self._gpus.abandon()
            _warn(
                f"NVML has not answered for {_LAST_ANSWER_S:.0f} s: the thread that asked it is "
                "left behind. The NVIDIA driver or a GPU hangs; see the kernel's log (dmesg)."
            )


def _warn(message: str) -> None:
    # Also where warnings are errors: no training is worth less than its samples.
    with suppress(RuntimeWarning):
        warnings.warn(message, RuntimeWarning, stacklevel=3)


@contextmanager
def sampling(
    process_id: int | None,
    *,
    clock: Callable[[], float],
    wanted: Wanted = "visible",
    period_s: float = PERIOD_S,
    listeners: Sequence[Listener] = (),
) -> Iterator[Sampler]:
    """Sample a process, its machine and GPUs while the block runs.

    The session with NVML is opened, and the first sample taken, in the caller's thread: a driver
    that hangs already then holds up the caller, as it would hold up TensorFlow.

    Args:
        process_id: The process whose memory and time are sampled; None samples none.
        clock: Returns seconds from any moment; it is called from the thread too.
        wanted: The GPUs by their places in CUDA's order; or "visible", those that
            CUDA_VISIBLE_DEVICES leaves; or "all" of the machine, parts of GPUs (MIG) included.
        period_s: From the end of one sample to the next.
        listeners: See ``Sampler.listen``.

    Example:
        >>> with sampling(os.getpid(), clock=time.perf_counter) as sampler:
        ...     model.fit(x, y)
        >>> sampler.recording().samples[-1].host.rss_mib
    """
    gpus = GpuWatch(process_id, wanted, clock)
    sampler = Sampler(process_id, clock, gpus, listeners)
    try:
        with sampler.running(period_s):
            yield sampler
    finally:
        gpus.close()
