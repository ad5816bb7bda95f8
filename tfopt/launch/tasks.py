"""The tasks of a job on this machine: their kinds, addresses and GPUs.

Guarantees: every task has a loopback port of its own, free when it was chosen, and below those
that Linux gives to outgoing connections, so that none of them takes it before the task does; no
GPU is in two tasks.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfopt.errors import UserError
from tfopt.places import ClusterPlace

_PORTS = range(20000, 32000)


@dataclass(frozen=True)
class Task:
    """One process of a job."""

    place: ClusterPlace
    gpus: tuple[str, ...] | None
    """What CUDA_VISIBLE_DEVICES shall say; None where the machine has no GPU."""

    @property
    def label(self) -> str:
        """How its lines are marked: ``worker 0``."""
        return f"{self.place.kind} {self.place.index}"

    @property
    def is_chief_of_ps(self) -> bool:
        """Whether the job is over when this one is done."""
        return self.place.kind == "chief" and "ps" in self.place.cluster

    @property
    def can_come_back(self) -> bool:
        """Whether the others go on without it, and take it in when it is there again."""
        return self.place.kind == "worker" and "ps" in self.place.cluster

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make the process this task."""
        told = {"TF_CONFIG": self.place.tf_config}
        if self.gpus is not None:
            # An empty text hides nothing from some versions of CUDA.
            told["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus) or "-1"
        return told


def tasks_here(workers: int, ps: int, gpus: Sequence[Sequence[str]] | None) -> list[Task]:
    """The tasks of a job with fresh ports: workers alone, or a chief, workers and ps.

    ``gpus`` are those of each worker; chief and ps of a parameter-server job get none.
    """
    kinds = {"chief": 1, "worker": workers, "ps": ps} if ps else {"worker": workers}
    ports = iter(free_ports(sum(kinds.values())))
    cluster = {
        kind: tuple(f"127.0.0.1:{next(ports)}" for _ in range(count))
        for kind, count in kinds.items()
    }
    tasks = []
    for kind, addresses in cluster.items():
        for index in range(len(addresses)):
            mine = None
            if gpus is not None:
                mine = tuple(gpus[index]) if kind == "worker" else ()
            place = ClusterPlace(kind, index, cluster, "tfopt launch")
            tasks.append(Task(place, mine))
    return tasks


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, at random so that two launchers seldom meet."""
    found: list[int] = []
    for port in secrets.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as attempt:
            # As the servers of TensorFlow do, which listen on every interface.
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise UserError(
        "There are not enough free ports on this machine.",
        expected=f"{count} between {_PORTS.start} and {_PORTS.stop}",
        received=f"{len(found)}",
    )


def visible_gpus(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """The GPUs that a process here would see: CUDA_VISIBLE_DEVICES, else the driver's devices."""
    told = environment.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        names = [name.strip() for name in told.split(",")]
        # CUDA stops at the first name that is none.
        ends = [at for at, name in enumerate(names) if name in ("", "-1", "NoDevFiles", "none")]
        return tuple(names[: ends[0]] if ends else names)
    devices = (root / "dev").glob("nvidia*")
    count = sum(re.fullmatch(r"nvidia\d+", device.name) is not None for device in devices)
    return tuple(str(index) for index in range(count))


def shared_out(
    visible: Sequence[str], workers: int, gpus_per_worker: int | None
) -> list[tuple[str, ...]] | None:
    """The GPUs of each worker; None where there are none and none were asked for."""
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
