"""Watch GPUs in one session with NVML.

The GPUs and their order stay those of the beginning; one that is lost has readings without values
while the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Literal

from tfopt.monitor.gpu_questions import questions
from tfopt.monitor.metrics import GPU_METRICS
from tfopt.monitor.polling import Poller
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
    "NVML_ERROR_DEPRECATED",
)

Wanted = Mapping[int, str] | Literal["visible", "all"]


@dataclass(eq=False)
class _WatchedGpu:
    """One GPU with its poller; ``missing`` says why a metric is None."""

    listed: ListedGpu
    poller: Poller
    missing: dict[str, str]


class GpuWatch:
    """Read the GPUs of one sampler; without any, ``no_gpu_reason`` says why."""

    def __init__(self, process_id: int, wanted: Wanted, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stack = ExitStack()
        self._abandoned = False
        self._gpus: list[_WatchedGpu] = []
        self.no_gpu_reason: str | None = None
        if not isinstance(wanted, str) and not wanted:
            self.no_gpu_reason = "no GPU is in use"
            return
        try:
            nvml = self._stack.enter_context(session())
            self._gpus = [_watched(nvml, gpu, process_id) for gpu in _chosen(nvml, wanted)]
        except Exception as error:  # whatever breaks in a driver
            known = isinstance(error, UnavailableError)
            self.no_gpu_reason = str(error) if known else f"NVML: {error}"
            self.close()

    def read(self) -> tuple[GpuReading, ...]:
        """Return a reading of each GPU."""
        now_s = self._clock()
        return tuple(GpuReading(**gpu.poller.values(now_s)) for gpu in self._gpus)

    def gpus(self) -> tuple[SampledGpu, ...]:
        """Return which GPUs these are, and what each does not report."""
        return tuple(
            SampledGpu(
                gpu.listed.uuid,
                gpu.listed.name,
                dict(gpu.missing),
                None if gpu.listed.whole is None else gpu.listed.whole.uuid,
            )
            for gpu in self._gpus
        )

    def close(self) -> None:
        """End the session."""
        if not self._abandoned:
            with suppress(Exception):  # a driver that went away cannot be left in good order
                self._stack.close()

    def abandon(self) -> None:
        """Leave the session alone: it hangs."""
        self._abandoned = True


def _watched(nvml: Any, gpu: ListedGpu, process_id: int) -> _WatchedGpu:
    permanent = {getattr(nvml, name) for name in _PERMANENT}

    def explain(error: Exception) -> tuple[str, bool]:
        if isinstance(error, UnavailableError):
            return str(error), False
        # A pynvml without a function raises another error.
        if not isinstance(error, nvml.NVMLError):
            return f"NVML: {error}", True
        return f"NVML: {error}", getattr(error, "value", None) in permanent

    missing: dict[str, str] = {}
    asked = {} if gpu.lost else questions(nvml, gpu, process_id)
    if gpu.lost:
        missing |= dict.fromkeys((metric.name for metric in GPU_METRICS), gpu.lost)
    return _WatchedGpu(gpu, Poller(asked, missing, explain), missing)


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
