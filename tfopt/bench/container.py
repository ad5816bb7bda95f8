"""The limits that a container or a batch system puts on this process (cgroup v1 and v2).

Guarantees: reads files only; a limit that cannot be read counts as none; the narrowest limit on
the way from this process's group up to the root is the one told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_GIB = 1024**3
# Version 1 writes "no limit" as the largest number of whole pages.
_NO_LIMIT = 2**60

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
    quotas = [quota for group in _groups(root, "cpu") if (quota := _quota(group)) is not None]
    sizes = [size for group in _groups(root, "memory") if (size := _bytes(group)) is not None]
    memory_gib = round(min(sizes) / _GIB, 3) if sizes else None
    return Limits(round(min(quotas), 3) if quotas else None, memory_gib)


def container_kind(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> str | None:
    """What this process is contained by, as far as it shows; None where nothing shows."""
    for name, kind in _VARIABLES.items():
        if variables.get(name):
            return kind
    for path, kind in _FILES.items():
        if (root / path).exists():
            return kind
    # systemd writes it down for everyone; LXC and others tell their first process.
    told = _text(root / "run/systemd/container").strip() or variables.get("container", "")
    if told:
        return told
    groups = _text(root / "proc/self/cgroup")
    return next((kind for word, kind in _IN_GROUP.items() if word in groups), None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those around it."""
    mounted = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, group = rest.partition(":")
        if names == "":
            tops = [mounted, mounted / "unified"]
        elif controller in names.split(","):
            tops = [mounted / names, mounted / controller]
        else:
            continue
        for top in tops:
            # Inside a container the group may be named as the host sees it, which is not here:
            # its parents end at the top, which is then the container's own group.
            inside = top / group.lstrip("/")
            yield from (each for each in (inside, *inside.parents) if each.is_relative_to(top))


def _quota(group: Path) -> float | None:
    """Cores: of version 2 a pair in one file, of version 1 two files."""
    words = _text(group / "cpu.max").split()
    words = words or _text(group / "cpu.cfs_quota_us").split()
    if len(words) == 1:
        words += _text(group / "cpu.cfs_period_us").split()
    quota, period = (_number(word) for word in words) if len(words) == 2 else (None, None)
    return quota / period if quota and period and quota > 0 else None


def _bytes(group: Path) -> int | None:
    size = _number(_text(group / "memory.max") or _text(group / "memory.limit_in_bytes"))
    return size if size is not None and 0 < size < _NO_LIMIT else None


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
