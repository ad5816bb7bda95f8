"""Check the host that feeds the GPUs: versions, cores, memory, /dev/shm and the data's disk."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import psutil

from tfopt.doctor.check import Check, Subject
from tfopt.job.cgroup import allowed_cores, cpu_quota, memory_limit_gib
from tfopt.measure.provenance import package_versions
from tfopt.monitor.nvml import gpu_memories

_MIB = 1024**2
_GIB = 1024**3
# Docker gives 64 MiB; NCCL's buffers and Python's worker processes want more.
_SHM_GIB = 1.0
_FREE_MEMORY_GIB = 1.0
_FREE_DISK_GIB = 2.0
# A file read in part says how fast a folder is; a small one does not.
_MOST_MIB = 64
_LEAST_MIB = 16
_LOOKED_AT = 2000
# A hard disk reads some 100 MiB/s in sequence: less is a network or a throttled volume.
_SLOW_MIB_PER_S = 50.0


def versions(subject: Subject) -> Iterable[Check]:
    """Compare TensorFlow, Keras and the others with the ranges that tfopt declares."""
    found = package_versions()
    evidence = tuple(f"{name} {version}" for name, version in found.items())
    outside = "; ".join(_outside(found))
    if outside:
        fix = "pip install --upgrade tfopt, or the versions it names; other ones are not tested"
        yield Check("host", "versions", "warning", outside, evidence, fix)
        return
    names = [name for name in ("python", "tensorflow", "keras", "numpy") if name in found]
    text = ", ".join(f"{name} {found[name]}" for name in names)
    yield Check("host", "versions", "ok", text, evidence)


def _outside(found: Mapping[str, str]) -> Iterator[str]:
    from packaging.requirements import Requirement

    try:
        declared = [Requirement(line) for line in requires("tfopt") or ()]
    except PackageNotFoundError:  # run from its source folder
        return
    for each in declared:
        version = found.get(each.name)
        if version and not each.marker and not each.specifier.contains(version, prereleases=True):
            yield f"{each.name} {version} is not in {each.specifier}"


def cores(subject: Subject) -> Iterable[Check]:
    """Tell the cores that this process may use, and its quota."""
    usable, quota = allowed_cores(), cpu_quota(subject.root)
    text = f"{usable:g} cores"
    if quota is not None and quota < usable:
        text = f"the container may use {quota:g} cores, and TensorFlow starts threads for {usable}"
    yield Check("host", "CPU cores", "ok", text)


def memory(subject: Subject) -> Iterable[Check]:
    """Compare the memory of the host, or of its container, with that of the GPUs."""
    now, limit, gpus = psutil.virtual_memory(), memory_limit_gib(subject.root), gpu_memories()
    total, free = now.total / _GIB, now.available / _GIB
    evidence = [f"{total:.1f} GiB, {free:.1f} GiB available"]
    if limit is not None:
        evidence.append(f"a limit of {limit:g} GiB (cgroup)")
        total = min(total, limit)
    on_gpus = 0.0 if isinstance(gpus, str) else sum(gpu.total_mib for gpu in gpus) / 1024
    text, fix = f"{total:.1f} GiB of memory, {free:.1f} GiB of the host free", None
    if free < _FREE_MEMORY_GIB:
        fix = "end what else runs here; the system ends processes when memory runs out"
    elif total < on_gpus:
        text = f"{total:.0f} GiB of memory for GPUs with {on_gpus:.0f} GiB"
        fix = "ask for at least as much as the GPUs have: models are saved and loaded through it"
    yield Check("host", "memory", "warning" if fix else "ok", text, tuple(evidence), fix)


def shared_memory(subject: Subject) -> Iterable[Check]:
    """Check /dev/shm, through which NCCL and Python's worker processes exchange data."""
    path = subject.root / "dev/shm"
    try:
        free = psutil.disk_usage(str(path)).free / _GIB
    except OSError as error:
        text, fix = f"{path} is not there: {error.strerror}", "mount a tmpfs there"
        yield Check("host", "/dev/shm", "warning", text, (), fix)
        return
    if free >= _SHM_GIB:
        yield Check("host", "/dev/shm", "ok", f"{free:.3g} GiB free")
        return
    fix = (
        f"mount -o remount,size=2G {path}; in Docker or Podman: --shm-size=2g; in Kubernetes: "
        "mount an emptyDir with medium: Memory there"
    )
    text = f"{free:.3g} GiB free: several GPUs (NCCL) or worker processes may fail for want of it"
    yield Check("host", "/dev/shm", "warning", text, (), fix)


def disk(subject: Subject) -> Iterable[Check]:
    """Check the space in the data's folder, or the temporary one, and how fast data is read."""
    folder = subject.data or Path(tempfile.gettempdir())
    free = psutil.disk_usage(str(folder)).free / _GIB
    text = f"{free:.3g} GiB free in {folder}"
    if free < _FREE_DISK_GIB:
        fix = "free space: caches and checkpoints need it"
        yield Check("host", "free space", "warning", text, (), fix)
    else:
        yield Check("host", "free space", "ok", text)
    if subject.data is not None:
        yield _reading(subject.data)


def _reading(folder: Path) -> Check:
    path = _largest_file(folder)
    if path is None or path.stat().st_size < _LEAST_MIB * _MIB:
        text = f"{folder} has no file of {_LEAST_MIB} MiB or more"
        return Check("host", "read rate", "not here", text)
    try:
        mib_per_s = _read_rate(path)
    except OSError as error:
        text = f"{path} could not be read: {error.strerror or error}"
        return Check("host", "read rate", "warning", text, (), "name another folder with --data")
    text = f"{mib_per_s:,.0f} MiB/s from {folder}"
    evidence = (f"{path.name}, in sequence, its pages dropped from the cache first",)
    if mib_per_s >= _SLOW_MIB_PER_S:
        return Check("host", "read rate", "ok", text, evidence)
    fix = "copy the data to a local disk, or keep it in memory: tfopt.pipeline(cache='memory')"
    return Check("host", "read rate", "warning", f"{text}: slower than a hard disk", evidence, fix)


def _largest_file(folder: Path) -> Path | None:
    """Return the largest of the first files that are found: a data set may have millions."""
    found: list[Path] = []
    for base, _, names in os.walk(folder):
        found += (path for name in names if (path := Path(base, name)).is_file())
        if len(found) > _LOOKED_AT:
            break
    return max(found, key=lambda path: path.stat().st_size, default=None)


def _read_rate(path: Path) -> float:
    """Return the MiB/s of reading a bounded part of a file, in sequence."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begun = time.perf_counter()
        done = sum(len(file.read(_MIB)) for _ in range(_MOST_MIB))
    return done / _MIB / max(time.perf_counter() - begun, 1e-9)
