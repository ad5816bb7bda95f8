"""One GPU asked again and again inside an open NVML session.

Guarantees: a reading never raises; what this GPU, its driver or a part of a GPU (MIG) does not
tell is None, with NVML's words in ``missing``; what it can never tell is asked only once. A GPU
that fell off the bus, or whose driver went away, tells nothing at all until ``begin`` is called
with a handle that works again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.monitor.asking import Asking, NotYet, Trouble
from tfopt.monitor.gpu_questions import questions
from tfopt.monitor.readings import GpuReading
from tfopt.monitor.session import UnavailableError
from tfopt.monitor.visible import ListedGpu

# Not of this GPU, this driver, or this user: it is the same the next time.
_NEVER = (
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


class WatchedGpu:
    """A GPU with the metrics that are asked of it; ``missing`` grows as it refuses some."""

    def __init__(
        self, nvml: Any, gpu: ListedGpu, process_id: int, clock: Callable[[], float]
    ) -> None:
        self.uuid = gpu.uuid
        self.part_of = None if gpu.whole is None else gpu.whole.uuid
        self.missing: dict[str, str] = {}
        self._nvml = nvml
        self._process_id = process_id
        self._clock = clock
        self._never = _codes(nvml, _NEVER)
        self._gone = _codes(nvml, _GONE)
        self.begin(gpu)

    def begin(self, gpu: ListedGpu) -> None:
        """Asks by this handle from now on, everything anew.

        Its UUID stays: what was told of it before is under that one.
        """
        asked = questions(self._nvml, gpu, self._process_id, self._clock)
        self._asking = Asking(asked, self.missing, self._explain)
        self.name = gpu.name
        if gpu.lost is not None:
            self._asking.give_up(gpu.lost)

    @property
    def gone(self) -> bool:
        """Whether it tells nothing any more."""
        return self._asking.gone

    def read(self) -> GpuReading:
        """Everything that this GPU tells now."""
        return GpuReading(**self._asking.answers(self._clock()))

    def ask_slow(self) -> bool:
        """Asks one of the questions that take long, if it is time for one; whether it did."""
        return self._asking.ask_slow(self._clock())

    def _explain(self, error: Exception) -> tuple[str, Trouble]:
        if isinstance(error, UnavailableError | NotYet):
            return str(error), Trouble.NOT_NOW
        told = f"NVML: {error}"
        if not isinstance(error, self._nvml.NVMLError):
            return told, Trouble.NEVER  # a pynvml that does not know the question
        if error.value in self._gone:
            return told, Trouble.GONE
        return told, Trouble.NEVER if error.value in self._never else Trouble.NOT_NOW


def _codes(nvml: Any, names: tuple[str, ...]) -> frozenset[int]:
    """The numbers of these errors, as far as this pynvml knows them."""
    return frozenset(getattr(nvml, name) for name in names if hasattr(nvml, name))
