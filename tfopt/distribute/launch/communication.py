"""Choose how the workers talk: NCCL or RING, and the variables of NCCL and gRPC.

What this machine has is read from its files (``/dev``, ``/sys/class``), without TensorFlow or a
driver. The variables follow NCCL's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tfopt.distribute.launch.local_tasks import visible_gpus
from tfopt.files import text_of

_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


@dataclass(frozen=True)
class Setting:
    """One variable, and why it is so."""

    name: str
    value: str | None
    """None: left to the library."""
    reason: str
    by_user: bool = False


@dataclass(frozen=True)
class Communication:
    """What was chosen on this machine."""

    implementation: str
    """"NCCL" or "RING", a name of tf.distribute.experimental.CommunicationImplementation."""
    reason: str
    settings: tuple[Setting, ...]

    @property
    def to_set(self) -> dict[str, str]:
        """Return the variables to set: none that the user has set."""
        return {
            each.name: each.value
            for each in self.settings
            if each.value is not None and not each.by_user
        }

    def table(self) -> str:
        """Return a line for each variable: name, value, reason."""
        rows = [("communication", self.implementation, self.reason)]
        for each in self.settings:
            value = "left as it is" if each.value is None else each.value
            rows.append((each.name, value, each.reason))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(
            f"{name:{widths[0]}}  {value:{widths[1]}}  {reason}" for name, value, reason in rows
        )


class _Port(NamedTuple):
    """A port of an InfiniBand (or RoCE) adapter that is up; the better one is the greater."""

    is_infiniband: bool
    gigabits: float
    link: str
    name: str


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
    wanted: list[Setting] = []
    if ps:
        reason = "a dead ps or worker becomes an error at the chief, as TensorFlow's guide asks"
        wanted.append(Setting("GRPC_FAIL_FAST", "use_caller", reason))
    wanted += _around_the_proxy(environment, hosts)
    if count == 0:
        implementation, why = "RING", "no GPU: gRPC between the processors"
    else:
        implementation, why = "NCCL", f"{count} GPU(s) a worker"
        wanted += [
            _interfaces(root),
            *_infiniband(root),
            Setting("NCCL_DEBUG", "WARN", "else NCCL fails without a word"),
            Setting("TF_GPU_THREAD_MODE", "gpu_private", "input does not delay the GPU's kernels"),
        ]
    settings = tuple(
        Setting(each.name, environment[each.name], "set by you", by_user=True)
        if each.name in environment
        else each
        for each in wanted
    )
    return Communication(implementation, why, settings)


def _around_the_proxy(environment: Mapping[str, str], hosts: Sequence[str]) -> list[Setting]:
    proxies = [name for name in _PROXIES if environment.get(name)]
    if not proxies or not hosts:
        return []
    known = environment.get("no_proxy", "")
    value = ",".join([*filter(None, [known]), *dict.fromkeys(hosts)])
    # Of gRPC alone, so that downloads go as they went.
    reason = f"else gRPC asks the proxy of {proxies[0]} for the other tasks, and all wait for ever"
    return [Setting("no_grpc_proxy", value, reason)]


def _interfaces(root: Path) -> Setting:
    name = "NCCL_SOCKET_IFNAME"
    physical, others = [], []
    for interface in sorted((root / "sys/class/net").glob("*")):
        if text_of(interface / "operstate") in ("down", "lowerlayerdown", "notpresent"):
            continue
        # What stands for hardware has a device; bridges and tunnels of containers have none.
        if (interface / "device").exists():
            physical.append(interface.name)
        elif not interface.name.startswith(("lo", "docker")):
            others.append(interface.name)
    if physical and others:
        reason = f"else NCCL might take {', '.join(others[:3])}"
        return Setting(name, "=" + ",".join(physical), reason)
    left = ", ".join(physical or others) or "nothing but lo and docker"
    return Setting(name, None, f"NCCL leaves out lo and docker by itself; there is {left}")


def _infiniband(root: Path) -> list[Setting]:
    ports = _ports(root)
    if not ports:
        return [Setting("NCCL_IB_DISABLE", "1", "no InfiniBand port that is up")]
    best = max(ports)
    left = [port for port in ports if port[:2] != best[:2]]
    if not left:
        reason = f"all {len(ports)} ports are alike ({best.link}, {best.gigabits:g} Gb/s)"
        return [Setting("NCCL_IB_HCA", None, reason)]
    without = ", ".join(f"{port.name} ({port.link}, {port.gigabits:g} Gb/s)" for port in left)
    names = "=" + ",".join(port.name for port in ports if port not in left)
    return [Setting("NCCL_IB_HCA", names, f"{best.gigabits:g} Gb/s; without {without}")]


def _ports(root: Path) -> list[_Port]:
    found = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        if "ACTIVE" not in text_of(port / "state"):
            continue
        rate = re.match(r"[\d.]+", text_of(port / "rate"))
        link = text_of(port / "link_layer") or "InfiniBand"
        name = f"{port.parents[1].name}:{port.name}"
        found.append(_Port(link == "InfiniBand", float(rate[0]) if rate else 0.0, link, name))
    return found
