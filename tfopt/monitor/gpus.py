"""Watch GPUs in one session with NVML.

The GPUs and their order stay those of the beginning; one that is lost has readings without values
while the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Literal

from tfopt.monitor.gpu_questions import questions
from tfopt.monitor.polling import Poller
from tfopt.monitor.readings import GPU_METRICS, GpuReading, SampledGpu
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

Wanted = Collection[int] | Literal["visible", "all"]


@dataclass(eq=False)
class _WatchedGpu:
    """One GPU with its poller; ``missing`` says why a metric is None."""

    listed: ListedGpu
    poller: Poller
    missing: dict[str, str]


class GpuWatch:
    """Read the GPUs of one sampler; without any, ``no_gpu_reason`` says why."""

    def __init__(self, process_id: int | None, wanted: Wanted, clock: Callable[[], float]) -> None:
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
            SampledGpu(gpu.listed.uuid, gpu.listed.name, dict(gpu.missing)) for gpu in self._gpus
        )

    def close(self) -> None:
        """End the session."""
        if not self._abandoned:
            with suppress(Exception):  # a driver that went away cannot be left in good order
                self._stack.close()

    def abandon(self) -> None:
        """Leave the session alone: it hangs."""
        self._abandoned = True


def _watched(nvml: Any, gpu: ListedGpu, process_id: int | None) -> _WatchedGpu:
    permanent = {getattr(nvml, name) for name in _PERMANENT}

    def explain(error: Exception) -> tuple[str, bool]:
        if isinstance(error, UnavailableError):
            return str(error), False
        return f"NVML: {error}", getattr(error, "value", None) in permanent

    asked = {} if gpu.lost else questions(nvml, gpu, process_id)
    why = gpu.lost or "it is not of a part of a GPU (MIG), or not of the divided GPU"
    missing = {metric.name: why for metric in GPU_METRICS if metric.name not in asked}
    return _WatchedGpu(gpu, Poller(asked, missing, explain), missing)


def _chosen(nvml: Any, wanted: Wanted) -> list[ListedGpu]:
    """Return the wanted GPUs; raise UnavailableError where they are not certain."""
    listed = listed_gpus(nvml)
    if wanted == "all":
        return listed
    if not order_is_known(listed, by_place=not isinstance(wanted, str)):
        raise UnavailableError(
            "GPUs of several kinds are named by their places, which CUDA counts from the fastest "
            "and NVML along the bus: set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    visible = visible_gpus(nvml)
    if not isinstance(wanted, str) and visible and max(wanted) >= len(visible):
        unknown = max(wanted)
        raise UnavailableError(
            f"NVML lists {len(visible)} visible GPU(s), and not number {unknown}"
        )
    chosen = visible if isinstance(wanted, str) else [visible[place] for place in wanted if visible]
    if not chosen:
        raise UnavailableError("NVML lists no visible GPU")
    return chosen
