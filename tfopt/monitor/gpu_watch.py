"""The GPUs that are sampled, in a session with NVML that is opened anew when it is lost.

Guarantees: nothing here raises; the GPUs and their order stay those of the beginning; a GPU that
is gone has empty readings while the others go on, and is looked for every few seconds, by its UUID
or, where it was lost before it told one, by its place;
when all are gone the session itself is opened anew, so that a driver may go and come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Literal

from tfopt.monitor.gpu_reading import WatchedGpu
from tfopt.monitor.readings import GpuReading, SampledGpu
from tfopt.monitor.session import UnavailableError, session
from tfopt.monitor.visible import (
    ListedGpu,
    listed_gpus,
    name_of_place,
    order_is_known,
    visible_gpus,
)

# Seldom: a GPU that is lost comes back when somebody resets it, and each try costs some time.
_LOOK_AGAIN_S = 5.0

Wanted = Mapping[int, str] | Literal["visible", "all"]


class GpuWatch:
    """The GPUs of one sampler; ``no_gpu_reason`` is there where there are none."""

    def __init__(self, process_id: int, wanted: Wanted, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stack = ExitStack()
        self._nvml: Any = None
        self._abandoned = False
        self._gpus: list[WatchedGpu] = []
        self._slow_order: list[WatchedGpu] = []
        self._looked_at = clock()
        self.no_gpu_reason: str | None = None
        if not isinstance(wanted, str) and not wanted:
            self.no_gpu_reason = "no GPU is in use"
            return
        try:
            self._nvml = self._stack.enter_context(session())
            chosen = _chosen(self._nvml, wanted)
            self._gpus = [WatchedGpu(self._nvml, gpu, process_id, clock) for gpu in chosen]
            self._slow_order = list(self._gpus)
        except UnavailableError as error:
            self.no_gpu_reason = str(error)
            self.close()
        except Exception as error:  # a library that is none, or no driver's
            self.no_gpu_reason = f"NVML: {error}"
            self.close()

    def read(self) -> tuple[GpuReading, ...]:
        """Each GPU now."""
        readings = tuple(gpu.read() for gpu in self._gpus)
        if any(gpu.gone for gpu in self._gpus) and self._is_time_to_look():
            with suppress(Exception):  # it is still away
                self._look_for_the_gone()
        return readings

    def ask_slow(self) -> None:
        """Asks one question that takes long, of one GPU: its answer is in the next reading."""
        asked = next((gpu for gpu in self._slow_order if gpu.ask_slow()), None)
        if asked is not None:
            # The others first, the next time.
            self._slow_order.remove(asked)
            self._slow_order.append(asked)

    def told(self) -> tuple[SampledGpu, ...]:
        """Which they are, and what each does not tell."""
        return tuple(
            SampledGpu(gpu.uuid, gpu.name, dict(gpu.missing), gpu.part_of) for gpu in self._gpus
        )

    def close(self) -> None:
        """Ends the session."""
        if not self._abandoned:
            with suppress(Exception):  # a driver that went away cannot be left in good order
                self._stack.close()

    def abandon(self) -> None:
        """No word to NVML any more: the session is another process's, or hangs."""
        self._abandoned = True

    def _is_time_to_look(self) -> bool:
        now_s = self._clock()
        if now_s - self._looked_at < _LOOK_AGAIN_S:
            return False
        self._looked_at = now_s
        return True

    def _look_for_the_gone(self) -> None:
        if all(gpu.gone for gpu in self._gpus):
            self.close()
            self._nvml = self._stack.enter_context(session())
        there = {gpu.uuid: gpu for gpu in self._listed_now() if gpu.lost is None}
        for gpu in self._gpus:
            if gpu.gone and gpu.uuid in there:
                gpu.begin(there[gpu.uuid])

    def _listed_now(self) -> Iterator[ListedGpu]:
        watched = {gpu.uuid for gpu in self._gpus}
        for place, gpu in enumerate(listed_gpus(self._nvml)):
            yield gpu
            # Of a GPU that is watched already, the place is another one's that went.
            if gpu.whole is None and gpu.uuid not in watched:
                yield replace(gpu, uuid=name_of_place(place))


def _chosen(nvml: Any, wanted: Wanted) -> list[ListedGpu]:
    """The GPUs that are meant; an UnavailableError where that cannot be told for certain."""
    listed = listed_gpus(nvml)
    if wanted == "all":
        chosen = listed
    else:
        chosen = visible_gpus(nvml)
        if not isinstance(wanted, str):
            chosen = [_at(place, name, chosen, listed) for place, name in wanted.items()]
        elif not order_is_known(listed):
            raise UnavailableError(
                "CUDA_VISIBLE_DEVICES names GPUs of several kinds by their places, which CUDA "
                "counts from the fastest and NVML along the bus: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
            )
    if not chosen:
        raise UnavailableError("NVML lists no visible GPU")
    return chosen


def _at(
    place: int, name: str, visible: Sequence[ListedGpu], listed: Sequence[ListedGpu]
) -> ListedGpu:
    """CUDA's GPU at this place, which it knows by this name."""
    if place >= len(visible):
        raise UnavailableError(f"NVML lists {len(visible)} visible GPU(s), and not number {place}")
    called = [gpu for gpu in listed if gpu.name == name]
    # A name that no board has is another spelling, not another board.
    if visible[place].name == name or not called:
        return visible[place]
    if len(called) == 1:
        return called[0]  # counted in another order, and only this one is called so
    raise UnavailableError(
        f"NVML's GPU {place} is a {visible[place].name} and CUDA's a {name}: "
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID for the same order in both"
    )
