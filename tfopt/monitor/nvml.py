"""Read the GPUs of this machine by NVML: names, parts (MIG), memory, driver.

CUDA_VISIBLE_DEVICES is read as CUDA reads it. CUDA uses at most one part of a GPU, and no other GPU
with it; of a divided GPU it takes the first part.

NVML lists GPUs by their place on the bus; CUDA, unless CUDA_DEVICE_ORDER is PCI_BUS_ID, lists the
fastest first, in an order that only CUDA knows. For boards of one model both orders are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tfopt.data.host_memory import MIB

_PROHIBITED = 2

_Answer = TypeVar("_Answer")


class UnavailableError(Exception):
    """NVML is not available; the text gives the reason."""


def error_text(error: Exception) -> str:
    """Return an error in words that begin with "NVML", as some of NVML's own texts do."""
    text = str(error)
    return text if text.startswith("NVML") else f"NVML: {text}"


@contextmanager
def session() -> Iterator[Any]:
    """Open a session with NVML for the block; raise UnavailableError for errors of NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableError(error_text(error)) from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise UnavailableError(error_text(error)) from error
    finally:
        with suppress(pynvml.NVMLError):  # of a lost driver
            pynvml.nvmlShutdown()


@dataclass(frozen=True)
class ListedGpu:
    """A GPU, or a part of one (MIG), with its handle in the open session.

    Attributes:
        whole: The UUID of the GPU of which it is a part; None for a whole one.
        lost: NVML's error for a listed GPU without a handle.
        forbidden: Whether this process lacks the permission; CUDA does not list it.
    """

    uuid: str
    name: str
    handle: Any
    whole: str | None = None
    lost: str | None = None
    forbidden: bool = False


def visible_gpus(nvml: Any) -> list[ListedGpu]:
    """Return the GPUs visible to CUDA, in its order as far as it is known."""
    listed = listed_gpus(nvml)
    forbidden = [gpu for gpu in listed if gpu.forbidden]
    if forbidden and len(forbidden) == len(listed):
        raise UnavailableError(str(forbidden[0].lost))
    listed = [gpu for gpu in listed if not gpu.forbidden]
    chosen = _select(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))
    named = {gpu.uuid for gpu in chosen}
    parts = [gpu for gpu in listed if gpu.whole and named & {gpu.uuid, gpu.whole}]
    return parts[:1] or chosen


def _select(gpus: Sequence[ListedGpu], visible: str | None) -> list[ListedGpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, in its order, up to the first unknown one.

    A GPU that is named twice hides all of them (as in PyTorch's ``torch.cuda``).
    """
    whole = [gpu for gpu in gpus if gpu.whole is None]
    if visible is None:
        return whole
    chosen: list[ListedGpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        place = int(entry) if entry.isdecimal() else None
        # A UUID may be abbreviated.
        named = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        matches = named if place is None else whole[place : place + 1]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen.append(matches[0])
    return chosen


def order_is_known(listed: Sequence[ListedGpu]) -> bool:
    """Return whether indices mean the same GPUs to CUDA and NVML, or none are used."""
    models = {gpu.name for gpu in listed if gpu.whole is None and not gpu.lost}
    entries = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    by_uuid = not any(entry.strip().isdecimal() for entry in entries)
    return len(models) < 2 or by_uuid or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def listed_gpus(nvml: Any) -> list[ListedGpu]:
    """Return all GPUs in NVML's order, then the parts of divided ones."""
    gpus = [_at_place(nvml, place) for place in range(nvml.nvmlDeviceGetCount())]
    return [*gpus, *(part for gpu in gpus if not gpu.lost for part in _parts(nvml, gpu))]


def _at_place(nvml: Any, place: int) -> ListedGpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(place)
        return ListedGpu(*_names(nvml, handle), handle)
    except nvml.NVMLError as error:
        # Errors of the session, not of this GPU.
        if error.value in (nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise
        # It keeps its index.
        return ListedGpu(
            f"GPU number {place}",
            "an unreachable GPU",
            None,
            lost=error_text(error),
            forbidden=error.value == nvml.NVML_ERROR_NO_PERMISSION,
        )


def _names(nvml: Any, handle: Any) -> tuple[str, str]:
    return nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)


def _parts(nvml: Any, gpu: ListedGpu) -> Iterator[ListedGpu]:
    # Errors: no parts in this GPU or driver; no part at this index, or no permission.
    with suppress(nvml.NVMLError):
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
                yield ListedGpu(*_names(nvml, handle), handle, whole=gpu.uuid)


@dataclass(frozen=True)
class DeviceFacts:
    """Properties of a GPU; None if the driver does not report them.

    Attributes:
        capability: CUDA's compute capability, such as (8, 0).
        prohibited: Whether its compute mode forbids computations.
        lost: NVML's error for a listed GPU that cannot be reached; the rest is None then.
    """

    uuid: str
    name: str
    capability: tuple[int, int] | None = None
    total_mib: float | None = None
    free_mib: float | None = None
    prohibited: bool | None = None
    lost: str | None = None


def device_facts() -> list[DeviceFacts]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES in CUDA's order; see :func:`why_no_gpu`."""
    return _in_session(lambda nvml: [_facts(nvml, gpu) for gpu in visible_gpus(nvml)]) or []


def listed_uuids() -> list[str]:
    """Return the UUIDs of all GPUs that this process may use, also hidden ones."""
    return _in_session(lambda nvml: [g.uuid for g in listed_gpus(nvml) if not g.forbidden]) or []


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver; None without one."""
    return _in_session(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()))


def newest_cuda() -> str | None:
    """Return the newest CUDA version that the driver supports; None without a driver."""
    number = _in_session(lambda nvml: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def _in_session(ask: Callable[[Any], _Answer]) -> _Answer | None:
    try:
        with session() as nvml:
            return ask(nvml)
    except UnavailableError:
        return None


def _facts(nvml: Any, gpu: ListedGpu) -> DeviceFacts:
    facts: dict[str, Any] = {}
    questions: dict[str, Callable[[], Any]] = {
        "total_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu.handle).total / MIB,
        "free_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu.handle).free / MIB,
        "capability": lambda: nvml.nvmlDeviceGetCudaComputeCapability(gpu.handle),
        "prohibited": lambda: nvml.nvmlDeviceGetComputeMode(gpu.handle) == _PROHIBITED,
    }
    for name, question in ({} if gpu.lost else questions).items():
        try:
            facts[name] = question()
        # A lost GPU may still have a name.
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
            return DeviceFacts(gpu.uuid, gpu.name, lost=error_text(error))
        except nvml.NVMLError:
            continue
    return DeviceFacts(gpu.uuid, gpu.name, lost=gpu.lost, **facts)


@dataclass(frozen=True)
class GpuMemory:
    """The memory of a GPU."""

    uuid: str
    name: str
    total_mib: float
    free_mib: float


def gpu_memories() -> list[GpuMemory]:
    """Return the memory of the GPUs in CUDA_VISIBLE_DEVICES; see :func:`why_no_gpu`.

    Lost GPUs are left out, as in CUDA, and those that do not report it.
    """
    return [
        GpuMemory(gpu.uuid, gpu.name, gpu.total_mib, gpu.free_mib)
        for gpu in device_facts()
        if gpu.total_mib is not None and gpu.free_mib is not None
    ]


def why_no_gpu() -> str:
    """Return in one line why TensorFlow sees no GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    try:
        with session() as nvml:
            gpus = [_facts(nvml, gpu) for gpu in visible_gpus(nvml)]
    except UnavailableError as error:
        return f"no GPU visible ({error})"
    if not gpus:
        return "no GPU visible (the NVIDIA driver lists none)"
    if all(gpu.total_mib is None for gpu in gpus):
        return f"no GPU visible ({gpus[0].lost or 'NVML: no GPU reports its memory'})"
    return (
        f"the driver lists {len(gpus)} GPU(s) but TensorFlow sees none: this TensorFlow "
        "build lacks CUDA libraries (pip install 'tfopt[gpu]')"
    )
