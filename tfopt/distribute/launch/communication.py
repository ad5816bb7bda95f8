"""Share out the GPUs, and choose the variables by which NCCL and gRPC let the workers talk.

The GPUs of this machine are those in ``/dev``, without TensorFlow or a driver. Which network cards
NCCL takes is its own choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfopt.errors import UserError

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def variables_to_talk(
    environment: Mapping[str, str],
    *,
    gpus: int | None = None,
    ps: bool = False,
    hosts: Sequence[str] = (),
    root: Path = Path("/"),
) -> dict[str, str]:
    """Return what to set for the tasks on this machine: none that the user has set.

    Args:
        environment: What is set already, and stays.
        gpus: How many GPUs a worker has; None looks which are visible here.
        ps: Whether it is a parameter-server job.
        hosts: The machines of the job, by the names in its addresses.
        root: The file system to look at.
    """
    wanted = {}
    if ps:  # a dead ps or worker becomes an error at the chief, as TensorFlow's guide asks
        wanted["GRPC_FAIL_FAST"] = "use_caller"
    if hosts and any(environment.get(name) for name in _PROXIES):
        # Else gRPC asks the proxy for the other tasks. Of gRPC alone: downloads go as they went.
        known = filter(None, [environment.get("no_proxy")])
        wanted["no_grpc_proxy"] = ",".join([*known, *dict.fromkeys(hosts)])
    if visible_gpus(environment, root) if gpus is None else gpus:
        wanted["NCCL_DEBUG"] = "WARN"  # else NCCL fails without a word
        wanted["TF_GPU_THREAD_MODE"] = "gpu_private"  # input does not delay the GPU's kernels
    return {name: value for name, value in wanted.items() if name not in environment}


def visible_gpus(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return the GPUs that a process here sees: CUDA_VISIBLE_DEVICES, else the driver's devices."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA stops at the first name that is none.
        ends = [at for at, name in enumerate(names) if name in ("", "-1", "NoDevFiles", "none")]
        return tuple(names[: ends[0]] if ends else names)
    devices = (root / "dev").glob("nvidia*")
    count = sum(re.fullmatch(r"nvidia\d+", device.name) is not None for device in devices)
    return tuple(str(index) for index in range(count))


def shared_out(
    visible: Sequence[str], workers: int, gpus_per_worker: int | None
) -> list[tuple[str, ...]] | None:
    """Return the GPUs of each worker; None where there are none and none were asked for."""
    if not visible and not gpus_per_worker:
        return None
    each = len(visible) // workers if gpus_per_worker is None else gpus_per_worker
    if each * workers > len(visible) or (each == 0 and gpus_per_worker is None):
        raise UserError(
            "There are too few GPUs for the workers.",
            expected=f"{max(each, 1) * workers} GPU(s) for {workers} worker(s)",
            received=f"{len(visible)} visible ({', '.join(visible) or 'none'})",
            fix="fewer workers or --gpus-per-worker; --gpus-per-worker 0 trains on the CPU",
        )
    return [tuple(visible[each * at : each * (at + 1)]) for at in range(workers)]
