"""Choose the variables by which NCCL and gRPC let the workers talk, as their documentation says.

What this machine has is read from its files (``/dev``, ``/sys/class``), without TensorFlow or a
driver. Which network cards NCCL takes is its own choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tfopt.distribute.launch.local_tasks import visible_gpus
from tfopt.files import text_of

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
        states = (root / "sys/class/infiniband").glob("*/ports/*/state")
        if not any("ACTIVE" in text_of(state) for state in states):
            wanted["NCCL_IB_DISABLE"] = "1"
        wanted["NCCL_DEBUG"] = "WARN"  # else NCCL fails without a word
        wanted["TF_GPU_THREAD_MODE"] = "gpu_private"  # input does not delay the GPU's kernels
    return {name: value for name, value in wanted.items() if name not in environment}
