"""Samples of a process, its machine and its GPUs, taken in a thread while something else runs.

Guarantees: sampling never raises and never ends what it samples, whatever a driver does; NVML is
opened once for all samples, and anew only when it was lost. Taking samples fills at most a
hundredth of the time, over some seconds (but for one every two seconds); a question for which NVML
itself waits is asked between two samples, one at a time. The thread has ended when the ``with``
block has, unless a driver does not answer at all: then a warning tells that it was left behind. A
process that was forked has a sampler that takes no samples and keeps what there was. No clock is
read here: it is an argument.
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from weakref import WeakSet

from tfopt.monitor.gpus import GpuWatch, Wanted
from tfopt.monitor.host import WatchedHost
from tfopt.monitor.readings import Kept, Recording, Sample, StepMark

PERIOD_S = 0.25
_LONGEST_PAUSE_S = 2.0
_PAUSES_A_SAMPLE = 99
# Of pauses that are owed, these may wait: each second's first sample asks for more than the others.
_MAY_BE_OWED_S = 1.0
# A driver that is in trouble may take seconds; one that takes longer never answers.
_LAST_ANSWER_S = 10.0

Listener = Callable[[Sample], object]


class Sampler:
    """Takes samples: one at each call of ``take``, and regularly while it is running."""

    def __init__(
        self,
        process_id: int,
        clock: Callable[[], float],
        gpus: GpuWatch | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._clock = clock
        self._host = WatchedHost(process_id, clock)
        self._gpus = gpus or GpuWatch(process_id, {}, clock)
        self._listeners = list(listeners)
        self._kept = Kept()
        self._forked = False
        self._begin_anew()
        _LIVING.add(self)

    def take(self) -> Sample:
        """A sample of now; where it cannot be taken, one that tells nothing and is not kept.

        That is so in a forked process, and while a driver does not answer another thread.
        """
        if self._forked or not self._busy.acquire(timeout=_LAST_ANSWER_S):
            return Sample(self._clock())
        try:
            readings = self._gpus.read()
            sample = Sample(self._clock(), self._host.read(), readings)
            self._kept.add(sample)
        finally:
            self._busy.release()
        self._tell(sample)
        return sample

    def mark(self, mark: StepMark) -> None:
        """Notes what the training did meanwhile."""
        self._kept.mark(mark)

    def listen(self, listener: Listener) -> None:
        """Calls ``listener`` with each sample from now on, in the thread that took it.

        One that raises is told in a warning and called no more.
        """
        self._listeners.append(listener)

    def newest(self) -> Sample | None:
        """The last sample that was taken."""
        return self._kept.newest()

    def recording(self, begun_s: float = -math.inf, ended_s: float = math.inf) -> Recording:
        """What was sampled between two moments of the clock, these included."""
        return Recording(
            samples=self._kept.samples(begun_s, ended_s),
            gpus=self._gpus.told(),
            no_gpu_reason=self._gpus.no_gpu_reason,
            steps=self.steps(begun_s, ended_s),
            host_missing=dict(self._host.missing),
        )

    def steps(self, begun_s: float = -math.inf, ended_s: float = math.inf) -> tuple[StepMark, ...]:
        """The marks of a recording between these moments, alone."""
        return self._kept.steps(begun_s, ended_s)

    @contextmanager
    def running(self, period_s: float) -> Iterator[None]:
        """Takes samples in a thread of its own, the first one at once and here."""
        self.take()
        thread = threading.Thread(
            target=self._run, args=(period_s,), name="tfopt-sampler", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            if not self._forked:
                self._wait_for(thread)

    def _run(self, period_s: float) -> None:
        pause_s, owed_s = period_s, 0.0
        while not self._ended.wait(pause_s):
            begun = self._clock()
            self.take()
            owed_s = max(owed_s - pause_s, 0.0) + _PAUSES_A_SAMPLE * (self._clock() - begun)
            owed_s = min(owed_s, _LONGEST_PAUSE_S + _MAY_BE_OWED_S)
            self._gpus.ask_slow()
            # A driver that answers slowly is asked less often: the measured work goes first.
            pause_s = max(period_s, owed_s - _MAY_BE_OWED_S)

    def _tell(self, sample: Sample) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(sample)
            except Exception as error:  # a full disk, a viewer that broke: sampling goes on
                self._listeners.remove(listener)
                _warn(f"{listener!r} failed and gets no more of the samples: {error}")

    def _wait_for(self, thread: threading.Thread) -> None:
        if thread is threading.current_thread():
            return  # what held the block was collected in here; this thread ends by itself
        thread.join(_LAST_ANSWER_S)
        if thread.is_alive():
            self._gpus.abandon()
            _warn(
                f"NVML has not answered for {_LAST_ANSWER_S:.0f} s: the thread that asked it is "
                "left behind. The NVIDIA driver or a GPU hangs; see the kernel's log (dmesg)."
            )

    def _begin_anew(self) -> None:
        self._busy = threading.Lock()
        self._ended = threading.Event()

    def _was_forked(self) -> None:
        """Its thread has stayed behind, perhaps with a lock that nobody will open."""
        self._forked = True
        self._gpus.abandon()
        self._begin_anew()


def _warn(told: str) -> None:
    # Also where warnings are errors: no training is worth less than its samples.
    with suppress(RuntimeWarning):
        warnings.warn(told, RuntimeWarning, stacklevel=3)


_LIVING: WeakSet[Sampler] = WeakSet()


def _after_fork() -> None:
    for sampler in tuple(_LIVING):
        sampler._was_forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def sampling(
    process_id: int,
    *,
    clock: Callable[[], float],
    wanted: Wanted | None = None,
    period_s: float = PERIOD_S,
    listeners: Sequence[Listener] = (),
) -> Iterator[Sampler]:
    """Samples a process, its machine and GPUs for as long as the block runs.

    The session with NVML is opened, and the first sample taken, in the caller's thread: a driver
    that hangs already then holds the caller up, as it would TensorFlow.

    Args:
        process_id: Whose memory and time are told.
        clock: Seconds from any moment; it is called from the thread too.
        wanted: The GPUs by their place in CUDA's order, with the name that CUDA knows them by;
            or "visible", those that CUDA_VISIBLE_DEVICES leaves; or "all" of the machine, parts
            of GPUs (MIG) included. None is "visible".
        period_s: From the end of one sample to the next.
        listeners: Called with each sample, in the thread that took it, one after the other. One
            that raises is told in a warning and called no more.
    """
    gpus = GpuWatch(process_id, "visible" if wanted is None else wanted, clock)
    sampler = Sampler(process_id, clock, gpus, listeners)
    try:
        with sampler.running(period_s):
            yield sampler
    finally:
        gpus.close()
