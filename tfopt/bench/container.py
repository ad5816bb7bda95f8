"""The limits that a container or a batch system puts on this process (cgroup v1 and v2).

Guarantees: reads files only; a limit that cannot be read counts as none; the narrowest limit on
the way from this process's group up to the root is the one told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfopt.monitor.cgroup import cpu_quota, memory_limit, read

_GIB = 1024**3

# Kubernetes and the batch systems run on one of the others: they come first.
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
}
_FILES = {"run/.containerenv": "podman", ".dockerenv": "docker"}
_IN_GROUP = {
    "kubepods": "kubernetes",
    "libpod": "podman",
    "docker": "docker",
    "lxc": "lxc",
    "containerd": "containerd",
}


@dataclass(frozen=True)
class Limits:
    """Cores and memory that the group may use; None without a limit."""

    cpu: float | None
    memory_gib: float | None


def read_limits(root: Path = Path("/")) -> Limits:
    """The limits of this process's control groups."""
    cpu, memory = cpu_quota(root), memory_limit(root)
    return Limits(
        None if cpu is None else round(cpu, 3), None if memory is None else round(memory / _GIB, 3)
    )


def container_kind(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> str | None:
    """What this process is contained by, as far as it shows; None where nothing shows."""
    for name, kind in _VARIABLES.items():
        if variables.get(name):
            return kind
    for path, kind in _FILES.items():
        if (root / path).exists():
            return kind
    # systemd writes it down for everyone; LXC and others tell their first process.
    told = read(root / "run/systemd/container").strip() or variables.get("container", "")
    if told:
        return told
    groups = read(root / "proc/self/cgroup")
    return next((kind for word, kind in _IN_GROUP.items() if word in groups), None)
