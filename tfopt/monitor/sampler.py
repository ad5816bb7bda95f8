"""Samples of a process and its GPUs, taken in a thread while something else is measured.

Guarantees: sampling never raises and never ends what is measured; NVML is opened once for all
samples; taking them fills at most a hundredth of the time (but for one every two seconds); the
thread has ended when the ``with`` block has. No clock is read here: it is an argument.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import psutil

from tfopt.monitor.gpu_reading import WatchedGpu
from tfopt.monitor.nvml import (
    MIB,
    ListedGpu,
    UnavailableError,
    listed_gpus,
    session,
    visible_gpus,
)
from tfopt.monitor.readings import HostReading, Recording, Sample, SampledGpu

PERIOD_S = 0.25
_LONGEST_PAUSE_S = 2.0
_PAUSES_A_SAMPLE = 99


class Sampler:
    """Takes samples: one at each call of ``take``, and regularly while it is running."""

    def __init__(
        self,
        process_id: int,
        clock: Callable[[], float],
        gpus: Sequence[WatchedGpu] = (),
        no_gpu_reason: str | None = None,
    ) -> None:
        self._process = _process(process_id)
        self._clock = clock
        self._gpus = gpus
        self._no_gpu_reason = no_gpu_reason
        self._samples: list[Sample] = []
        self._busy = threading.Lock()
        self._ended = threading.Event()

    def take(self) -> Sample:
        """A sample of now."""
        with self._busy:
            readings = tuple(gpu.read() for gpu in self._gpus)
            sample = Sample(self._clock(), HostReading(rss_mib=self._rss_mib()), readings)
            self._samples.append(sample)
        return sample

    def recording(self, begun_s: float = -math.inf, ended_s: float = math.inf) -> Recording:
        """What was sampled between two moments of the clock, these included."""
        with self._busy:
            return Recording(
                tuple(each for each in self._samples if begun_s <= each.at_s <= ended_s),
                tuple(SampledGpu(gpu.uuid, gpu.name, dict(gpu.missing)) for gpu in self._gpus),
                self._no_gpu_reason,
            )

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
            thread.join()

    def _run(self, period_s: float) -> None:
        pause_s = period_s
        while not self._ended.wait(pause_s):
            begun = self._clock()
            self.take()
            # A driver that answers slowly is asked less often: the measured work goes first.
            rest_s = min(_PAUSES_A_SAMPLE * (self._clock() - begun), _LONGEST_PAUSE_S)
            pause_s = max(period_s, rest_s)

    def _rss_mib(self) -> float | None:
        try:
            return None if self._process is None else self._process.memory_info().rss / MIB
        except (psutil.Error, OSError):
            return None


@contextmanager
def sampling(
    process_id: int,
    *,
    clock: Callable[[], float],
    wanted: Mapping[int, str] | None = None,
    period_s: float = PERIOD_S,
) -> Iterator[Sampler]:
    """Samples a process and GPUs for as long as the block runs.

    Args:
        process_id: Whose memory is told.
        clock: Seconds from any moment; it is called from the thread too.
        wanted: The GPUs by their place in CUDA's order, with the name that CUDA knows them by;
            None is every visible one.
        period_s: From the end of one sample to the next.
    """
    with ExitStack() as stack:
        sampler = Sampler(process_id, clock, *_open_gpus(stack, process_id, wanted))
        stack.enter_context(sampler.running(period_s))
        yield sampler


def _open_gpus(
    stack: ExitStack, process_id: int, wanted: Mapping[int, str] | None
) -> tuple[list[WatchedGpu], str | None]:
    """The GPUs in a session that lasts as long as ``stack``; or none, and why."""
    if wanted is not None and not wanted:
        return [], "no GPU is in use"
    try:
        with ExitStack() as opening:
            nvml = opening.enter_context(session())
            visible = visible_gpus(nvml)
            places = dict.fromkeys(range(len(visible)), "") if wanted is None else wanted
            refused = _why_not(places, visible, {gpu.name for gpu in listed_gpus(nvml)})
            if refused:
                return [], refused
            watched = [WatchedGpu(nvml, visible[place], process_id) for place in places]
            stack.push(opening.pop_all())
    except UnavailableError as error:
        return [], str(error)
    return watched, None


def _why_not(places: Mapping[int, str], visible: Sequence[ListedGpu], all_names: set[str]) -> str:
    """Why the GPUs at these places are not to be had; empty where they are."""
    if not places:
        return "NVML lists no visible GPU"
    for place, name in places.items():
        if place >= len(visible):
            return f"NVML lists {len(visible)} visible GPU(s), and not number {place}"
        listed = visible[place].name
        # A name that no board has is another spelling, not another board.
        if name != listed and name in all_names:
            return (
                f"NVML's GPU {place} is a {listed} and CUDA's a {name}: "
                "set CUDA_DEVICE_ORDER=PCI_BUS_ID for the same order in both"
            )
    return ""


def _process(process_id: int) -> psutil.Process | None:
    try:
        return psutil.Process(process_id)
    except psutil.Error:
        return None
