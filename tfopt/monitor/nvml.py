"""What NVML tells of the GPUs of this machine.

Guarantees: never raises for a missing driver, library or permission; says in words why there
is nothing to tell; no session with NVML outlasts a call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol, TypeVar

# An open session with NVIDIA's management library (NVML).
#
# Guarantees: NVML is imported and initialised only inside a call and shut down after it; whatever
# it refuses is an ``UnavailableError`` in words.

MIB = 1024 * 1024


class UnavailableError(Exception):
    """NVML cannot answer; the text says why."""


@contextmanager
def session() -> Iterator[Any]:
    """NVML, initialised and shut down again; whatever it refuses is an UnavailableError."""
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


def text(value: bytes | str) -> str:
    """What NVML calls something; older versions of pynvml give bytes."""
    return value.decode() if isinstance(value, bytes) else value


# Which GPUs, and parts of GPUs (MIG), a process of CUDA's sees, and in which order.
#
# Guarantees: CUDA_VISIBLE_DEVICES is read as CUDA reads it: places and UUIDs, shortened ones too,
# in its order and only up to the first that is unknown, and none where one is named twice; parts
# by both of their spellings, ``MIG-UUID`` and ``MIG-GPU-UUID/gpu instance/compute instance``.
# CUDA uses one part at most, and where it uses one, no other GPU; of a GPU that is divided it
# takes the first part.
#
# NVML lists GPUs by their place on the bus; CUDA, unless CUDA_DEVICE_ORDER is PCI_BUS_ID, lists
# the fastest first, which it tells nobody. Among boards of one kind the two orders are the same;
# else ``order_is_known`` says so, and what depends on the order must be refused or told by name.
#
# One GPU that cannot be reached hides no other: it keeps its place, with NVML's words. One that
# this process has no permission for (a job's or a container's devices) is listed too, and CUDA,
# which cannot open it, does not count it.

_PART = "MIG-"


@dataclass(frozen=True)
class ListedGpu:
    """A GPU, or a part of one (MIG), with the handle that an open session asks it by.

    Attributes:
        whole: The GPU that it is a part of; None where it is a whole one.
        other_name: A part's older spelling.
        divided: Whether it is a GPU that CUDA uses in parts only.
        lost: NVML's words, where it lists a GPU and cannot reach it; it has no handle then.
        forbidden: Whether it is not reached for want of permission.
    """

    uuid: str
    name: str
    handle: Any
    whole: ListedGpu | None = None
    other_name: str | None = None
    divided: bool = False
    lost: str | None = None
    forbidden: bool = False


class _Named(Protocol):
    @property
    def uuid(self) -> str: ...


_Gpu = TypeVar("_Gpu", bound=_Named)


def select_visible(gpus: Sequence[_Gpu], visible: str | None) -> list[_Gpu]:
    """Applies CUDA_VISIBLE_DEVICES as CUDA does: in its order, ending at the first unknown.

    One that is named twice hides all of them (as PyTorch's ``torch.cuda`` reads it, too).
    """
    whole = [gpu for gpu in gpus if not gpu.uuid.startswith(_PART)]
    if visible is None:
        return whole
    chosen: list[_Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        place = int(entry) if entry.isdecimal() else None
        matches = _called(gpus, entry) if place is None else whole[place : place + 1]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen.append(matches[0])
    return chosen


def _called(gpus: Sequence[_Gpu], entry: str) -> list[_Gpu]:
    """Those of this name; without one of exactly this name, those whose name begins with it."""
    exact = [gpu for gpu in gpus if entry in (gpu.uuid, getattr(gpu, "other_name", None))]
    return exact or [gpu for gpu in gpus if entry and gpu.uuid.startswith(entry)]


def visible_gpus(nvml: Any) -> list[ListedGpu]:
    """The GPUs of an open session that CUDA sees, in its order as far as that is known."""
    listed = listed_gpus(nvml)
    forbidden = [gpu for gpu in listed if gpu.forbidden]
    if forbidden and len(forbidden) == len(listed):
        raise UnavailableError(str(forbidden[0].lost))
    listed = [gpu for gpu in listed if not gpu.forbidden]
    chosen = select_visible(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))
    used = [_as_used(gpu, listed) for gpu in chosen]
    parts = [gpu for gpu in used if gpu is not None and gpu.whole is not None]
    return parts[:1] or [gpu for gpu in used if gpu is not None]


def order_is_known(listed: Sequence[ListedGpu]) -> bool:
    """Whether the places in CUDA_VISIBLE_DEVICES, if it has any, are certain to be NVML's."""
    if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return True
    entries = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    kinds = {gpu.name for gpu in listed if gpu.whole is None and not gpu.lost}
    return len(kinds) < 2 or not any(entry.strip().isdecimal() for entry in entries)


def _as_used(gpu: ListedGpu, listed: Sequence[ListedGpu]) -> ListedGpu | None:
    """Of a divided GPU the first part; None where it has been divided into none."""
    if not gpu.divided:
        return gpu
    return next((each for each in listed if each.whole is gpu), None)


def listed_gpus(nvml: Any) -> list[ListedGpu]:
    """All GPUs of an open session in NVML's order, then the parts that some are divided into."""
    gpus = [_at_place(nvml, place) for place in range(nvml.nvmlDeviceGetCount())]
    parts = [part for gpu in gpus if gpu.divided for part in _parts(nvml, gpu)]
    # A container may have been given a part, and not the right to list all of them.
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    for entry in (each.strip() for each in named):
        if entry.startswith(_PART) and not _called(parts, entry):
            parts.extend(_part_called(nvml, entry))
    return [*gpus, *parts]


def _at_place(nvml: Any, place: int) -> ListedGpu:
    try:
        return _listed(nvml, nvml.nvmlDeviceGetHandleByIndex(place))
    except nvml.NVMLError as error:
        # These are of the whole session, and not of this GPU.
        if error.value in (nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise
        name = "a GPU that is not reached"
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            name = "a lost GPU"
        # It keeps its place: those behind it are not renumbered.
        return ListedGpu(
            name_of_place(place),
            name,
            None,
            lost=f"NVML: {error}",
            forbidden=error.value == nvml.NVML_ERROR_NO_PERMISSION,
        )


def name_of_place(place: int) -> str:
    """What stands for the UUID of a GPU that cannot be asked for it."""
    return f"GPU number {place}"


def _listed(nvml: Any, handle: Any) -> ListedGpu:
    return ListedGpu(*_names(nvml, handle), handle, divided=_is_divided(nvml, handle))


def _is_divided(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:
        return False  # a GPU, or a driver, that knows no parts


def _names(nvml: Any, handle: Any) -> tuple[str, str]:
    return text(nvml.nvmlDeviceGetUUID(handle)), text(nvml.nvmlDeviceGetName(handle))


def _parts(nvml: Any, gpu: ListedGpu) -> Iterator[ListedGpu]:
    try:
        most = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)
    except nvml.NVMLError:
        return
    for place in range(most):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
            yield _part(nvml, handle, gpu)
        except nvml.NVMLError:
            continue  # no part at this place, or somebody else's


def _part(nvml: Any, handle: Any, gpu: ListedGpu) -> ListedGpu:
    uuid, name = _names(nvml, handle)
    try:
        instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
        other = f"{_PART}{gpu.uuid}/{instance}/{nvml.nvmlDeviceGetComputeInstanceId(handle)}"
    except nvml.NVMLError:
        other = None
    return ListedGpu(uuid, name, handle, whole=gpu, other_name=other)


def _part_called(nvml: Any, name: str) -> list[ListedGpu]:
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(name)
    except nvml.NVMLError:
        return []
    try:
        whole = _listed(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
        return [_part(nvml, handle, whole)]
    except nvml.NVMLError:
        return [ListedGpu(*_names(nvml, handle), handle)]


# What NVML tells of a GPU that does not change while it trains: for ``tfopt doctor``.
#
# Guarantees: never raises; what a GPU or its driver does not tell is None.

# How two GPUs reach each other, by NVML's number for their nearest common ancestor.
_WAYS = {
    0: "the same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one PCIe host bridge",
    40: "the CPU of one NUMA node",
    50: "the link between CPUs",
}
_PROHIBITED = 2


@dataclass(frozen=True)
class DeviceFacts:
    """One visible GPU, in CUDA's order.

    Attributes:
        capability: CUDA's compute capability, such as (8, 0).
        pci: Its address in ``/sys/bus/pci/devices``, such as "0000:3b:00.0".
        prohibited: Whether its compute mode forbids computations.
        lost: NVML's words, where it lists this GPU and cannot reach it: nothing else is told then.
    """

    uuid: str
    name: str
    capability: tuple[int, int] | None
    pci: str | None
    total_mib: float | None
    free_mib: float | None
    prohibited: bool | None
    lost: str | None = None


def device_facts() -> list[DeviceFacts] | str:
    """The GPUs under CUDA_VISIBLE_DEVICES, or why there are none to read."""
    try:
        with session() as nvml:
            return [_facts(nvml, gpu) for gpu in visible_gpus(nvml)]
    except UnavailableError as error:
        return str(error)


def listed_uuids() -> list[str]:
    """All GPUs that the driver lists, hidden or not; none without a driver."""
    try:
        with session() as nvml:
            return [gpu.uuid for gpu in listed_gpus(nvml)]
    except UnavailableError:
        return []


def ways_between() -> dict[tuple[int, int], str]:
    """How each two visible GPUs reach each other, where the driver tells."""
    try:
        with session() as nvml:
            there = [(n, g.handle) for n, g in enumerate(visible_gpus(nvml)) if g.lost is None]
            told = {
                (n, m): _asked(nvml, "nvmlDeviceGetTopologyCommonAncestor", first, second)
                for (n, first), (m, second) in combinations(there, 2)
            }
    except UnavailableError:
        return {}
    return {pair: _WAYS[way] for pair, way in told.items() if way in _WAYS}


def _facts(nvml: Any, gpu: ListedGpu) -> DeviceFacts:
    lost = gpu.lost or _why_lost(nvml, gpu.handle)
    if lost is not None:
        return DeviceFacts(gpu.uuid, gpu.name, None, None, None, None, None, lost)
    capability = _asked(nvml, "nvmlDeviceGetCudaComputeCapability", gpu.handle)
    memory = _asked(nvml, "nvmlDeviceGetMemoryInfo", gpu.handle)
    mode = _asked(nvml, "nvmlDeviceGetComputeMode", gpu.handle)
    pci = _asked(nvml, "nvmlDeviceGetPciInfo", gpu.handle)
    return DeviceFacts(
        uuid=gpu.uuid,
        name=gpu.name,
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        pci=None if pci is None else f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0",
        total_mib=None if memory is None else memory.total / MIB,
        free_mib=None if memory is None else memory.free / MIB,
        prohibited=None if mode is None else mode == _PROHIBITED,
    )


def _why_lost(nvml: Any, handle: Any) -> str | None:
    """A GPU that is lost may still tell its name: memory it does not."""
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired) as error:
        return f"NVML: {error}"
    except nvml.NVMLError:
        return None
    return None


def _asked(nvml: Any, name: str, *arguments: Any) -> Any:
    question: Callable[..., Any] | None = getattr(nvml, name, None)
    try:
        return None if question is None else question(*arguments)
    except nvml.NVMLError:
        return None


@dataclass(frozen=True)
class GpuMemory:
    """One GPU's memory at a moment."""

    uuid: str
    name: str
    total_mib: float
    free_mib: float


def gpu_memories() -> list[GpuMemory] | str:
    """The GPUs in CUDA's order under CUDA_VISIBLE_DEVICES, or why there are none to read.

    Those that are lost are left out, as CUDA leaves them out.
    """
    try:
        with session() as nvml:
            gpus = visible_gpus(nvml)
            told = [memory for gpu in gpus if (memory := _read(nvml, gpu)) is not None]
            if gpus and not told:
                return next((gpu.lost for gpu in gpus if gpu.lost), "NVML: every GPU is lost")
            return told
    except UnavailableError as error:
        return str(error)


def driver_version() -> str | None:
    """The NVIDIA driver's version, or None without one."""
    try:
        with session() as nvml:
            return text(nvml.nvmlSystemGetDriverVersion())
    except UnavailableError:
        return None


def newest_cuda() -> str | None:
    """The newest CUDA that the driver can run, or None without a driver."""
    try:
        with session() as nvml:
            number = nvml.nvmlSystemGetCudaDriverVersion_v2()
    except UnavailableError:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def why_no_gpu() -> str:
    """Why TensorFlow sees no GPU here, as far as can be told, in one line."""
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


def _read(nvml: Any, gpu: ListedGpu) -> GpuMemory | None:
    """None of one that is lost."""
    if gpu.lost is not None:
        return None
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
    except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired):
        return None
    return GpuMemory(gpu.uuid, gpu.name, memory.total / MIB, memory.free / MIB)
