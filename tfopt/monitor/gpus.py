"""Watch GPUs in a session with NVML that is opened anew when it is lost.

The GPUs and their order stay those of the beginning. One that is gone has empty readings while the
others go on; it is looked for by its UUID every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal

from tfopt.monitor.gpu_questions import questions
from tfopt.monitor.polling import Failure, NotYet, Poller
from tfopt.monitor.readings import GpuReading, SampledGpu
from tfopt.monitor.visible_gpus import (
    ListedGpu,
    UnavailableError,
    listed_gpus,
    order_is_known,
    session,
    visible_gpus,
)

# The same for this GPU, this driver or this user the next time.
_PERMANENT = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
    "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
    "NVML_ERROR_DEPRECATED",
)
# The handle is worth nothing any more, or the whole session.
_GONE = (
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_RESET_REQUIRED",
    "NVML_ERROR_GPU_NOT_FOUND",
    "NVML_ERROR_UNINITIALIZED",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
)
# A GPU that is lost comes back when somebody resets it, and each look takes some time.
_LOOK_AGAIN_S = 5.0

Wanted = Mapping[int, str] | Literal["visible", "all"]


class WatchedGpu:
    """One GPU with its poller; ``missing`` says why a metric is None."""

    def __init__(
        self, nvml: Any, gpu: ListedGpu, process_id: int, clock: Callable[[], float]
    ) -> None:
        self.uuid = gpu.uuid
        self.part_of = None if gpu.whole is None else gpu.whole.uuid
        self.missing: dict[str, str] = {}
        self._nvml = nvml
        self._process_id = process_id
        self._clock = clock
        self._permanent = {getattr(nvml, name) for name in _PERMANENT}
        self._gone = {getattr(nvml, name) for name in _GONE}
        self.begin(gpu)

    def begin(self, gpu: ListedGpu) -> None:
        """Ask by this handle from now on."""
        asked = questions(self._nvml, gpu, self._process_id, self._clock)
        self.poller = Poller(asked, self.missing, self._explain)
        self.name = gpu.name
        if gpu.lost is not None:
            self.poller.give_up(gpu.lost)

    def _explain(self, error: Exception) -> tuple[str, Failure]:
        if isinstance(error, UnavailableError | NotYet):
            return str(error), Failure.TEMPORARY
        reason = f"NVML: {error}"
        if not isinstance(error, self._nvml.NVMLError):
            return reason, Failure.PERMANENT  # a pynvml without this function
        if error.value in self._gone:
            return reason, Failure.GONE
        permanent = error.value in self._permanent
        return reason, Failure.PERMANENT if permanent else Failure.TEMPORARY


class GpuWatch:
    """Read the GPUs of one sampler; without any, ``no_gpu_reason`` says why."""

    def __init__(self, process_id: int, wanted: Wanted, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stack = ExitStack()
        self._nvml: Any = None
        self._abandoned = False
        self._gpus: list[WatchedGpu] = []
        self._slow_order: list[WatchedGpu] = []
        self._looked_s = clock()
        self.no_gpu_reason: str | None = None
        if not isinstance(wanted, str) and not wanted:
            self.no_gpu_reason = "no GPU is in use"
            return
        try:
            self._nvml = self._stack.enter_context(session())
            chosen = _chosen(self._nvml, wanted)
            self._gpus = [WatchedGpu(self._nvml, gpu, process_id, clock) for gpu in chosen]
            self._slow_order = list(self._gpus)
        except Exception as error:  # whatever breaks in a driver
            known = isinstance(error, UnavailableError)
            self.no_gpu_reason = str(error) if known else f"NVML: {error}"
            self.close()

    def read(self) -> tuple[GpuReading, ...]:
        """Return a reading of each GPU; look for those that are gone."""
        now_s = self._clock()
        readings = tuple(GpuReading(**gpu.poller.values(now_s)) for gpu in self._gpus)
        gone = [gpu for gpu in self._gpus if gpu.poller.gone]
        if gone and now_s - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            with suppress(Exception):  # the driver is still away
                self._look_for(gone)
        return readings

    def poll_slow(self) -> None:
        """Poll one metric that takes long, of one GPU, for the next reading."""
        now_s = self._clock()
        polled = next((gpu for gpu in self._slow_order if gpu.poller.poll_slow(now_s)), None)
        if polled is not None:
            # The others come first, the next time.
            self._slow_order.remove(polled)
            self._slow_order.append(polled)

    def gpus(self) -> tuple[SampledGpu, ...]:
        """Return which GPUs these are, and what each does not report."""
        return tuple(
            SampledGpu(gpu.uuid, gpu.name, dict(gpu.missing), gpu.part_of) for gpu in self._gpus
        )

    def close(self) -> None:
        """End the session."""
        if not self._abandoned:
            with suppress(Exception):  # a driver that went away cannot be left in good order
                self._stack.close()

    def abandon(self) -> None:
        """Leave the session alone: it belongs to another process, or hangs."""
        self._abandoned = True

    def _look_for(self, gone: list[WatchedGpu]) -> None:
        if gone == self._gpus:
            self.close()
            self._nvml = self._stack.enter_context(session())
        present = {gpu.uuid: gpu for gpu in listed_gpus(self._nvml) if gpu.lost is None}
        for gpu in gone:
            if gpu.uuid in present:
                gpu.begin(present[gpu.uuid])


def _chosen(nvml: Any, wanted: Wanted) -> list[ListedGpu]:
    """Return the wanted GPUs; raise UnavailableError where they are not certain."""
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
    """Return CUDA's GPU at this place, which CUDA knows by this name."""
    if place >= len(visible):
        raise UnavailableError(f"NVML lists {len(visible)} visible GPU(s), and not number {place}")
    called = [gpu for gpu in listed if gpu.name == name]
    # A name that no board has is another spelling, not another board.
    if visible[place].name == name or not called:
        return visible[place]
    if len(called) == 1:
        return called[0]  # counted in another order, and only this one has the name
    raise UnavailableError(
        f"NVML's GPU {place} is a {visible[place].name} and CUDA's a {name}: "
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID for the same order in both"
    )
