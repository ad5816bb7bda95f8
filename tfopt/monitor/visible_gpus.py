"""List the GPUs, and parts of GPUs (MIG), that CUDA sees, in a session with NVML.

CUDA_VISIBLE_DEVICES is read as CUDA reads it. CUDA uses one part at most, and beside it no other
GPU; of a GPU that is divided it takes the first part.

NVML lists GPUs by their place on the bus; CUDA, unless CUDA_DEVICE_ORDER is PCI_BUS_ID, lists the
fastest first, in an order that only CUDA knows. Among boards of one kind the two orders are the
same; see ``order_is_known`` for the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

MIB = 1024 * 1024
_PART = "MIG-"


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
        whole: The GPU that it is a part of; None where it is a whole one.
        divided: Whether CUDA uses it in parts only.
        lost: NVML's words, where it lists a GPU and cannot reach it; there is no handle then.
        forbidden: Whether this process lacks the permission for it; CUDA does not count it.
    """

    uuid: str
    name: str
    handle: Any
    whole: ListedGpu | None = None
    divided: bool = False
    lost: str | None = None
    forbidden: bool = False


def _select(gpus: Sequence[ListedGpu], visible: str | None) -> list[ListedGpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, in its order, up to the first unknown one.

    A GPU that is named twice hides all of them (as PyTorch's ``torch.cuda`` reads it, too).
    """
    whole = [gpu for gpu in gpus if not gpu.uuid.startswith(_PART)]
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


def visible_gpus(nvml: Any) -> list[ListedGpu]:
    """Return the GPUs that CUDA sees, in its order as far as that is known."""
    listed = listed_gpus(nvml)
    forbidden = [gpu for gpu in listed if gpu.forbidden]
    if forbidden and len(forbidden) == len(listed):
        raise UnavailableError(str(forbidden[0].lost))
    listed = [gpu for gpu in listed if not gpu.forbidden]
    chosen = _select(listed, os.environ.get("CUDA_VISIBLE_DEVICES"))
    parts = [each for gpu in chosen for each in listed if gpu in (each, each.whole) and each.whole]
    return parts[:1] or [gpu for gpu in chosen if not gpu.divided]


def order_is_known(listed: Sequence[ListedGpu], by_place: bool) -> bool:
    """Return whether CUDA's places of GPUs, in its variable or ``by_place``, are those of NVML."""
    kinds = {gpu.name for gpu in listed if gpu.whole is None and not gpu.lost}
    if len(kinds) < 2 or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return True
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return not by_place
    return not any(entry.strip().isdecimal() for entry in visible.split(","))


def listed_gpus(nvml: Any) -> list[ListedGpu]:
    """Return all GPUs in NVML's order, then the parts that some are divided into."""
    gpus = [_at_place(nvml, place) for place in range(nvml.nvmlDeviceGetCount())]
    return [*gpus, *(part for gpu in gpus if gpu.divided for part in _parts(nvml, gpu))]


def _at_place(nvml: Any, place: int) -> ListedGpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(place)
        return ListedGpu(*_names(nvml, handle), handle, divided=_is_divided(nvml, handle))
    except nvml.NVMLError as error:
        # These concern the whole session, not this GPU.
        if error.value in (nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise
        name = "a GPU that is not reached"
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            name = "a lost GPU"
        # It keeps its place, so that those after it are not renumbered.
        return ListedGpu(
            f"GPU number {place}",
            name,
            None,
            lost=f"NVML: {error}",
            forbidden=error.value == nvml.NVML_ERROR_NO_PERMISSION,
        )


def _is_divided(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:
        return False  # a GPU, or a driver, without MIG


def _names(nvml: Any, handle: Any) -> tuple[str, str]:
    return nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)


def _parts(nvml: Any, gpu: ListedGpu) -> Iterator[ListedGpu]:
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
            yield ListedGpu(*_names(nvml, handle), handle, whole=gpu)
        except nvml.NVMLError:
            continue  # no part at this place, or somebody else's
