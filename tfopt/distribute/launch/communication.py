"""Choose how the workers talk: NCCL or RING, and the variables of NCCL and gRPC.

What this machine has is read from its files (``/dev``, ``/sys/class``), without TensorFlow or a
driver. Which network cards NCCL takes is its own choice. The variables follow NCCL's documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfopt.distribute.launch.local_tasks import visible_gpus
from tfopt.files import text_of

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True)
class Communication:
    """What was chosen on this machine."""

    implementation: str
    """"NCCL" or "RING", a name of tf.distribute.experimental.CommunicationImplementation."""
    reason: str
    to_set: dict[str, str]
    """The variables to set: none that the user has set."""
    rows: tuple[tuple[str, str, str], ...]
    """Name, value and reason of each variable."""

    def table(self) -> str:
        """Return a line for each variable: name, value, reason."""
        rows = [("communication", self.implementation, self.reason), *self.rows]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(
            f"{name:{widths[0]}}  {value:{widths[1]}}  {reason}" for name, value, reason in rows
        )


def choose(
    environment: Mapping[str, str],
    *,
    gpus: int | None = None,
    ps: bool = False,
    hosts: Sequence[str] = (),
    root: Path = Path("/"),
) -> Communication:
    """Return the choice for the tasks on this machine, each variable with its reason.

    Args:
        environment: What is set already, and stays.
        gpus: How many GPUs a worker has; None looks which are visible here.
        ps: Whether it is a parameter-server job.
        hosts: The machines of the job, by the names in its addresses.
        root: The file system to look at.
    """
    count = len(visible_gpus(environment, root)) if gpus is None else gpus
    wanted: list[tuple[str, str, str]] = []
    if ps:
        reason = "a dead ps or worker becomes an error at the chief, as TensorFlow's guide asks"
        wanted.append(("GRPC_FAIL_FAST", "use_caller", reason))
    wanted += _around_the_proxy(environment, hosts)
    if count == 0:
        implementation, why = "RING", "no GPU: gRPC between the processors"
    else:
        ports = _infiniband_ports(root)
        implementation, why = "NCCL", f"{count} GPU(s) a worker, {ports} InfiniBand port(s) up"
        if not ports:
            wanted.append(("NCCL_IB_DISABLE", "1", "no InfiniBand port that is up"))
        wanted += [
            ("NCCL_DEBUG", "WARN", "else NCCL fails without a word"),
            ("TF_GPU_THREAD_MODE", "gpu_private", "input does not delay the GPU's kernels"),
        ]
    rows = tuple(
        (name, environment[name], "set by you") if name in environment else (name, value, reason)
        for name, value, reason in wanted
    )
    to_set = {name: value for name, value, _ in rows if name not in environment}
    return Communication(implementation, why, to_set, rows)


def _around_the_proxy(
    environment: Mapping[str, str], hosts: Sequence[str]
) -> list[tuple[str, str, str]]:
    proxies = [name for name in _PROXIES if environment.get(name)]
    if not proxies or not hosts:
        return []
    known = environment.get("no_proxy", "")
    value = ",".join([*filter(None, [known]), *dict.fromkeys(hosts)])
    # Of gRPC alone, so that downloads go as they went.
    reason = f"else gRPC asks the proxy of {proxies[0]} for the other tasks, and all wait for ever"
    return [("no_grpc_proxy", value, reason)]


def _infiniband_ports(root: Path) -> int:
    states = (root / "sys/class/infiniband").glob("*/ports/*/state")
    return sum("ACTIVE" in text_of(state) for state in states)
