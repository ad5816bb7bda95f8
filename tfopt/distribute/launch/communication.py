"""Assign the GPUs to tasks, and set environment variables of NCCL and gRPC.

The GPUs of this machine are counted in ``/dev``, without TensorFlow or a driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfopt.errors import UserError

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def communication_variables(
    environment: Mapping[str, str],
    *,
    gpus: int | None = None,
    ps: bool = False,
    hosts: Sequence[str] = (),
    root: Path = Path("/"),
) -> dict[str, str]:
    """Return the variables to set for the tasks on this machine, without those already set.

    Args:
        environment: The variables that are set.
        gpus: GPUs of a worker; None counts the visible ones.
        ps: Whether it is a parameter-server job.
        hosts: The machines of the job, by the names in its addresses.
        root: The root of the file system.
    """
    variables = {}
    if ps:  # a dead ps or worker becomes an error at the chief, as TensorFlow's guide recommends
        variables["GRPC_FAIL_FAST"] = "use_caller"
    if hosts and any(environment.get(name) for name in _PROXIES):
        # gRPC must not ask the proxy for the other tasks; downloads still use it.
        no_proxy = filter(None, [environment.get("no_proxy")])
        variables["no_grpc_proxy"] = ",".join([*no_proxy, *dict.fromkeys(hosts)])
    if cuda_names(environment, root) if gpus is None else gpus:
        variables["NCCL_DEBUG"] = "WARN"  # without it NCCL reports no cause
        variables["TF_GPU_THREAD_MODE"] = "gpu_private"  # input does not delay the GPU's kernels
    return {name: value for name, value in variables.items() if name not in environment}


def cuda_names(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return the names of the GPUs in CUDA_VISIBLE_DEVICES, else of all devices in ``/dev``."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA stops at the first invalid name.
        ends = [at for at, name in enumerate(names) if name in ("", "-1", "NoDevFiles", "none")]
        return tuple(names[: ends[0]] if ends else names)
    devices = (root / "dev").glob("nvidia*")
    count = sum(re.fullmatch(r"nvidia\d+", device.name) is not None for device in devices)
    return tuple(str(index) for index in range(count))


def gpus_per_task(
    visible: Sequence[str], workers: int, gpus_per_worker: int | None
) -> list[tuple[str, ...]] | None:
    """Return the GPUs of each worker; None on a machine without GPUs."""
    if not visible and not gpus_per_worker:
        return None
    count = len(visible) // workers if gpus_per_worker is None else gpus_per_worker
    if count * workers > len(visible) or (count == 0 and gpus_per_worker is None):
        raise UserError(
            "There are too few GPUs for the workers.",
            expected=f"{max(count, 1) * workers} GPU(s) for {workers} worker(s)",
            received=f"{len(visible)} visible ({', '.join(visible) or 'none'})",
            fix="lower --workers or --gpus-per-worker; --gpus-per-worker 0 trains on the CPU",
        )
    return [tuple(visible[count * at : count * (at + 1)]) for at in range(workers)]
