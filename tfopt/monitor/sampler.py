"""Sample a process, its machine and its GPUs in a thread while something else runs.

Sampling never raises, never ends what it samples, and takes at most a hundredth of the time over
some seconds.
"""

from __future__ import annotations

import math
import threading
import warnings
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from operator import attrgetter
from typing import TypeVar

from tfopt.monitor.gpus import GpuWatch, Wanted
from tfopt.monitor.host import WatchedHost
from tfopt.monitor.readings import Recording, Sample, StepMark

PERIOD_S = 0.25
_LONGEST_PAUSE_S = 2.0
_PAUSES_A_SAMPLE = 99
# A driver that is in trouble may take seconds; one that takes longer never answers.
_LAST_ANSWER_S = 10.0
# A sample of one GPU and a few cores is about 2 KiB: some 40 MiB, for hours at one a second.
_MOST_KEPT = 20_000

T = TypeVar("T")


class Sampler:
    """Take samples: one at each call of ``take``, and regularly while it is running.

    The session with NVML is opened in the caller's thread: a driver that hangs already then holds
    up the caller, as it would hold up TensorFlow.
    """

    def __init__(
        self, process_id: int | None, clock: Callable[[], float], wanted: Wanted = "visible"
    ) -> None:
        self._clock = clock
        self._host = WatchedHost(process_id, clock)
        self._gpus = GpuWatch(wanted)
        self._listeners: list[Callable[[Sample], object]] = []
        self._samples: deque[Sample] = deque(maxlen=_MOST_KEPT)
        self._marks: deque[StepMark] = deque(maxlen=_MOST_KEPT)
        self._trained: StepMark | None = None
        self._busy = threading.Lock()
        self._ended = threading.Event()
        self._hangs = False

    def close(self) -> None:
        """End the session with NVML, unless it hangs."""
        if not self._hangs:
            self._gpus.close()

    def take(self) -> Sample:
        """Return a sample of now, and keep it.

        While a driver does not answer another thread, the sample is empty and is not kept.
        """
        if not self._busy.acquire(timeout=_LAST_ANSWER_S):
            return Sample(self._clock())
        try:
            readings = self._gpus.read()
            sample = Sample(self._clock(), self._host.read(), readings)
            self._samples.append(sample)
        finally:
            self._busy.release()
        self._notify(sample)
        return sample

    def mark(self, mark: StepMark) -> None:
        """Keep a mark of the training that runs meanwhile."""
        self._marks.append(mark)
        self._trained = mark if self._trained is None else self._trained.joined(mark)

    def listen(self, listener: Callable[[Sample], object]) -> None:
        """Call ``listener`` with each sample from now on, in the thread that took it.

        A listener that raises leaves a warning and is called no more.
        """
        self._listeners.append(listener)

    def recording(self, begun_s: float = -math.inf, ended_s: float = math.inf) -> Recording:
        """Return what was sampled between two moments of the clock, these included."""
        return Recording(
            samples=_between(self._samples, "at_s", begun_s, ended_s),
            gpus=self._gpus.gpus(),
            no_gpu_reason=self._gpus.no_gpu_reason,
            steps=self.marks(begun_s, ended_s),
            trained=self._trained,
            host_missing=dict(self._host.missing),
        )

    def marks(self, begun_s: float = -math.inf, ended_s: float = math.inf) -> tuple[StepMark, ...]:
        """Return the marks between two moments of the clock, these included."""
        return _between(self._marks, "ended_s", begun_s, ended_s)

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
        pause_s = period_s
        while not self._ended.wait(pause_s):
            begun_s = self._clock()
            self.take()
            # A driver that answers slowly is polled less often: the training goes first.
            slow_s = min(_PAUSES_A_SAMPLE * (self._clock() - begun_s), _LONGEST_PAUSE_S)
            pause_s = max(period_s, slow_s)

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
            self._hangs = True
            _warn(
                f"NVML has not answered for {_LAST_ANSWER_S:.0f} s: the thread that asked it is "
                "left behind. The NVIDIA driver or a GPU hangs; see the kernel's log (dmesg)."
            )


def _between(moments: deque[T], at: str, begun_s: float, ended_s: float) -> tuple[T, ...]:
    kept, when = tuple(moments), attrgetter(at)  # another thread may add to them meanwhile
    first = bisect_left(kept, begun_s, key=when)
    return kept[first : bisect_right(kept, ended_s, key=when)]


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
) -> Iterator[Sampler]:
    """Sample a process, its machine and GPUs in a thread while the block runs.

    Args:
        process_id: The process whose memory and time are sampled; None samples none.
        clock: Returns seconds from any moment; it is called from the thread too.
        wanted: The GPUs by their places in CUDA's order; or "visible", those that
            CUDA_VISIBLE_DEVICES leaves; or "all" of the machine, parts of GPUs (MIG) included.
        period_s: From the end of one sample to the next.

    Example:
        >>> with sampling(os.getpid(), clock=time.perf_counter) as sampler:
        ...     model.fit(x, y)
        >>> sampler.recording().samples[-1].host.rss_mib
    """
    with closing(Sampler(process_id, clock, wanted)) as sampler, sampler.running(period_s):
        yield sampler
