"""Which GPUs, and parts of GPUs (MIG), a process of CUDA's sees, and in which order.

Guarantees: CUDA_VISIBLE_DEVICES is read as CUDA reads it: places and UUIDs, shortened ones too, in
its order and only up to the first that is unknown, and none where one is named twice; parts by
both of their spellings, ``MIG-UUID`` and ``MIG-GPU-UUID/gpu instance/compute instance``. CUDA uses
one part at most, and where it uses one, no other GPU; of a GPU that is divided it takes the first
part.

NVML lists GPUs by their place on the bus; CUDA, unless CUDA_DEVICE_ORDER is PCI_BUS_ID, lists the
fastest first, which it tells nobody. Among boards of one kind the two orders are the same; else
``order_is_known`` says so, and what depends on the order must be refused or told by name.

One GPU that cannot be reached hides no other: it keeps its place, with NVML's words. One that this
process has no permission for (a job's or a container's devices) is listed too, and CUDA, which
cannot open it, does not count it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tfopt.monitor.session import UnavailableError, text

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
