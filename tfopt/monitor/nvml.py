"""Read what NVML knows of the GPUs of this machine: names, parts (MIG), memory, driver.

CUDA_VISIBLE_DEVICES is read as CUDA reads it. CUDA uses one part of a GPU at most, and beside it no
other GPU; of a GPU that is divided it takes the first part.

NVML lists GPUs by their place on the bus; CUDA, unless CUDA_DEVICE_ORDER is PCI_BUS_ID, lists the
fastest first, in an order that only CUDA knows. Among boards of one kind the two orders are the
same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

MIB = 1024 * 1024
_PROHIBITED = 2

_Answer = TypeVar("_Answer")


class UnavailableError(Exception):
    """NVML cannot answer; the text says why."""


@contextmanager
def session() -> Iterator[Any]:
    """Open a session with NVML for the block; raise UnavailableError for what NVML refuses."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML: {error}") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML: {error}") from error
    finally:
        # A driver that went away meanwhile cannot be left in good order.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


@dataclass(frozen=True)
class ListedGpu:
    """A GPU, or a part of one (MIG), with its handle in the open session.

    Attributes:
        whole: The UUID of the GPU that it is a part of; None where it is a whole one.
        lost: NVML's words, where it lists a GPU and cannot reach it; there is no handle then.
        forbidden: Whether this process lacks the permission for it; CUDA does not count it.
    """

    uuid: str
    name: str
    handle: Any
    whole: str | None = None
    lost: str | None = None
    forbidden: bool = False


def visible_gpus(nvml: Any) -> list[ListedGpu]:
    """Return the GPUs that CUDA sees, in its order as far as that is known."""
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

    A GPU that is named twice hides all of them (as PyTorch's ``torch.cuda`` reads it, too).
    """
    whole = [gpu for gpu in gpus if gpu.whole is None]
    if visible is None:
        return whole
    chosen: list[ListedGpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        place = int(entry) if entry.isdecimal() else None
        # A name may be cut short.
        named = [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]
        matches = named if place is None else whole[place : place + 1]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen.append(matches[0])
    return chosen


def order_is_known(listed: Sequence[ListedGpu]) -> bool:
    """Return whether an index means the same GPU to CUDA and NVML, or none is used.

    It does where they are of one kind, or ordered by the bus.
    """
    kinds = {gpu.name for gpu in listed if gpu.whole is None and not gpu.lost}
    entries = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    by_uuid = not any(entry.strip().isdecimal() for entry in entries)
    return len(kinds) < 2 or by_uuid or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"


def listed_gpus(nvml: Any) -> list[ListedGpu]:
    """Return all GPUs in NVML's order, then the parts that some are divided into."""
    gpus = [_at_place(nvml, place) for place in range(nvml.nvmlDeviceGetCount())]
    return [*gpus, *(part for gpu in gpus if not gpu.lost for part in _parts(nvml, gpu))]


def _at_place(nvml: Any, place: int) -> ListedGpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(place)
        return ListedGpu(*_names(nvml, handle), handle)
    except nvml.NVMLError as error:
        # These concern the whole session, not this GPU.
        if error.value in (nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise
        # It keeps its place, so that those after it are not renumbered.
        return ListedGpu(
            f"GPU number {place}",
            "a GPU that is not reached",
            None,
            lost=f"NVML: {error}",
            forbidden=error.value == nvml.NVML_ERROR_NO_PERMISSION,
        )


def _names(nvml: Any, handle: Any) -> tuple[str, str]:
    return nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)


def _parts(nvml: Any, gpu: ListedGpu) -> Iterator[ListedGpu]:
    # A GPU, or a driver, without parts; no part at a place, or somebody else's.
    with suppress(nvml.NVMLError):
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
                yield ListedGpu(*_names(nvml, handle), handle, whole=gpu.uuid)


@dataclass(frozen=True)
class DeviceFacts:
    """What does not change of a GPU while it trains; None where the driver does not report it.

    Attributes:
        capability: CUDA's compute capability, such as (8, 0).
        prohibited: Whether its compute mode forbids computations.
        lost: NVML's words, where it lists this GPU and cannot reach it; the rest is None then.
    """

    uuid: str
    name: str
    capability: tuple[int, int] | None = None
    total_mib: float | None = None
    free_mib: float | None = None
    prohibited: bool | None = None
    lost: str | None = None


def device_facts() -> list[DeviceFacts] | str:
    """Return the GPUs under CUDA_VISIBLE_DEVICES in CUDA's order, or why there are none."""
    try:
        with session() as nvml:
            return [_facts(nvml, gpu) for gpu in visible_gpus(nvml)]
    except UnavailableError as error:
        return str(error)


def listed_uuids() -> list[str]:
    """Return all GPUs that the driver lists, hidden or not; none without a driver."""
    return _in_session(lambda nvml: [gpu.uuid for gpu in listed_gpus(nvml)]) or []


def driver_version() -> str | None:
    """Return the NVIDIA driver's version; None without a driver."""
    return _in_session(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()))


def newest_cuda() -> str | None:
    """Return the newest CUDA that the driver can run; None without a driver."""
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
        # A lost GPU may still have a name, but no memory.
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
            return DeviceFacts(gpu.uuid, gpu.name, lost=f"NVML: {error}")
        except nvml.NVMLError:
            continue
    return DeviceFacts(gpu.uuid, gpu.name, lost=gpu.lost, **facts)


@dataclass(frozen=True)
class GpuMemory:
    """The memory of one GPU at one moment."""

    uuid: str
    name: str
    total_mib: float
    free_mib: float


def gpu_memories() -> list[GpuMemory] | str:
    """Return the memory of the GPUs under CUDA_VISIBLE_DEVICES, or why there are none.

    Lost GPUs are left out, as CUDA leaves them out, and those that do not report it.
    """
    facts = device_facts()
    if isinstance(facts, str):
        return facts
    known = [
        GpuMemory(gpu.uuid, gpu.name, gpu.total_mib, gpu.free_mib)
        for gpu in facts
        if gpu.total_mib is not None and gpu.free_mib is not None
    ]
    if facts and not known:
        return facts[0].lost or "NVML: no GPU reports its memory"
    return known


def why_no_gpu() -> str:
    """Return in one line why TensorFlow sees no GPU here, as far as is known."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    memories = gpu_memories()
    if isinstance(memories, str):
        return f"no GPU visible ({memories})"
    if not memories:
        return "no GPU visible (the NVIDIA driver lists none)"
    return (
        f"the driver lists {len(memories)} GPU(s) but TensorFlow sees none: this TensorFlow "
        "build lacks CUDA libraries (pip install 'tfopt[gpu]')"
    )
