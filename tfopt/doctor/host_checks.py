"""The host that feeds the GPUs: cores, memory, threads, /dev/shm and limits.

Guarantees: files and variables are read, nothing is set.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfopt.doctor.check import Check, Inspection, Subject, Verdict
from tfopt.doctor.gpu_checks import cores_of
from tfopt.doctor.version_checks import text_of
from tfopt.job.cluster_place import usable_cores
from tfopt.measure.machine import container_kind, read_limits
from tfopt.monitor.nvml import device_facts

# How fast the folder of the data is read in sequence, measured, and what is free there.
#
# Guarantees: the user's files are only read; a file of its own is gone afterwards. The pages of
# the file are dropped from the system's cache first, where the system does so when asked (Linux,
# ``posix_fadvise``); a disk's or a cloud's own cache below is not.

_MIB = 1024**2
_MOST_MIB = 256
_OWN_MIB = 64
_BLOCK = 4 * _MIB
_MOST_S = 3.0
_ENOUGH_MIB = 16
_LOOKED_AT = 2000
# A hard disk reads some 100 MiB/s in sequence: less is a network or a throttled volume.
_SLOW_MIB_PER_S = 50.0
_LEAST_FREE_DISK_GIB = 2.0
_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class ReadRate:
    """What was measured, and how."""

    mib_per_s: float
    how: str
    in_memory: bool


def read_rate(folder: Path) -> ReadRate:
    """Reads the largest file of a folder once, or one that is written for it."""
    with _something_to_read(folder) as (path, what):
        dropped = _drop_from_cache(path)
        mib, seconds = _read(path)
    kind = _file_system(folder)
    how = (
        f"{mib:.0f} MiB of {what} in sequence, "
        + ("its pages dropped from the cache first" if dropped else "maybe from the cache")
        + f", on {kind or 'an unknown file system'}"
    )
    return ReadRate(mib / max(seconds, 1e-9), how, kind in _IN_MEMORY)


def disk(subject: Subject) -> Iterable[Check]:
    """The data's folder, or the temporary folder where none is named."""
    folder = subject.data or Path(tempfile.gettempdir())
    named = str(folder) if subject.data else f"{folder} (no --data folder is named)"
    free = shutil.disk_usage(folder).free / 1024**3
    if free < _LEAST_FREE_DISK_GIB:
        told, fix = f"{free:.2f} GiB are free in {folder}", "free space: caches and checkpoints"
        yield Check("disk", "free space", "warning", told, (), fix)
    else:
        yield Check("disk", "free space", "ok", f"{free:.0f} GiB free in {folder}")
    try:
        rate = read_rate(folder)
    except OSError as error:
        told = f"{named} could not be read: {error.strerror or error}"
        yield Check("disk", "read rate", "warning", told, (), "name another folder with --data")
        return
    told = f"{rate.mib_per_s:,.0f} MiB/s from {named}"
    if rate.in_memory:
        told += ", which is memory"
    if rate.mib_per_s < _SLOW_MIB_PER_S:
        fix = "copy the data to a local disk, or keep it in memory: tfopt.pipeline(cache='memory')"
        told += ": slower than a hard disk"
        yield Check("disk", "read rate", "warning", told, (rate.how,), fix)
    else:
        yield Check("disk", "read rate", "ok", told, (rate.how,))


@contextmanager
def _something_to_read(folder: Path) -> Iterator[tuple[Path, str]]:
    largest = _largest(folder)
    if largest is not None and largest.stat().st_size >= _ENOUGH_MIB * _MIB:
        yield largest, largest.name
        return
    handle, name = tempfile.mkstemp(prefix=".tfopt-", dir=folder)
    try:
        with open(handle, "wb") as file:
            block = os.urandom(_BLOCK)  # what a file system that compresses cannot make smaller
            for _ in range(_OWN_MIB * _MIB // _BLOCK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())  # only clean pages can be dropped
        yield Path(name), "a file written for this"
    finally:
        Path(name).unlink(missing_ok=True)


def _largest(folder: Path) -> Path | None:
    """Among the first files that are found: a data set may have millions."""
    found: list[tuple[int, str]] = []
    looked_at = 0
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(base, name)
            looked_at += 1
            if os.path.isfile(path) and not os.path.islink(path) and os.access(path, os.R_OK):
                found.append((os.path.getsize(path), path))
        if looked_at > _LOOKED_AT:
            break
    return Path(max(found)[1]) if found else None


def _drop_from_cache(path: Path) -> bool:
    if not hasattr(os, "posix_fadvise"):
        return False
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _read(path: Path) -> tuple[float, float]:
    """MiB and seconds, of a bounded part of the file."""
    done = 0
    begun = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while done < _MOST_MIB * _MIB and time.perf_counter() - begun < _MOST_S:
            block = file.read(_BLOCK)
            if not block:
                break
            done += len(block)
    return done / _MIB, time.perf_counter() - begun


def _file_system(folder: Path) -> str | None:
    """Its type by the longest mount point above."""
    place = folder.resolve()
    mounts = [
        (len(each.mountpoint), each.fstype)
        for each in psutil.disk_partitions(all=True)
        if place.is_relative_to(each.mountpoint)
    ]
    return max(mounts)[1] if mounts else None


DISK_INSPECTIONS = (Inspection("disk", "disk", disk, limit_s=60.0),)


_GIB = 1024**3
# What decodes, shuffles and copies for one GPU, and the process that starts its kernels: fewer
# cores starve it in common image pipelines (clouds sell 6 to 16 cores with a GPU).
_CORES_A_GPU = 4
# Docker gives 64 MiB; NCCL's buffers and Python's worker processes want more.
_SHM_GIB = 1.0
_LEAST_FREE_MEMORY_GIB = 1.0
_FEW_FILES = 1024

_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


def _gpus() -> tuple[int, float]:
    """How many GPUs there are to feed, and their memory in GiB."""
    facts = device_facts()
    if isinstance(facts, str):
        return 0, 0.0
    there = [gpu for gpu in facts if not gpu.lost]
    return len(there), sum(gpu.total_mib or 0.0 for gpu in there) / 1024


def cores(subject: Subject) -> Iterable[Check]:
    """Cores that this process may use, against a quota and the GPUs."""
    usable, quota = usable_cores(), read_limits(subject.root).cpu
    gpus, _ = _gpus()
    evidence = [
        f"{usable} of {psutil.cpu_count() or usable} logical cores by affinity",
        "no quota" if quota is None else f"a quota of {quota:g} cores (cgroup)",
    ]
    effective = usable if quota is None else min(usable, quota)
    if quota is not None and quota < usable:
        whole = max(int(quota), 1)
        yield Check(
            "host",
            "CPU cores",
            "warning",
            f"the container may use {quota:g} cores, and TensorFlow starts threads for {usable}: "
            "they are stopped in turns",
            tuple(evidence),
            f"export TF_NUM_INTRAOP_THREADS={whole} OMP_NUM_THREADS={whole}, or pin as many cores",
        )
    elif gpus and effective < gpus * _CORES_A_GPU:
        yield Check(
            "host",
            "CPU cores",
            "warning",
            f"{effective:g} cores feed {gpus} GPU(s): an input pipeline may starve them",
            (*evidence, f"rule of thumb: {_CORES_A_GPU} cores for each GPU"),
            "ask for more cores, or let tfopt.pipeline() cache and keep the input light",
        )
    else:
        fed = f" for {gpus} GPU(s)" if gpus else ""
        yield Check("host", "CPU cores", "ok", f"{effective:g} cores{fed}", tuple(evidence))


def memory(subject: Subject) -> Iterable[Check]:
    """Memory of the host or of its container, against the GPUs'."""
    now = psutil.virtual_memory()
    limit = read_limits(subject.root).memory_gib
    total = now.total / _GIB if limit is None else min(now.total / _GIB, limit)
    gpus, on_gpus = _gpus()
    evidence = [f"{now.total / _GIB:.1f} GiB, {now.available / _GIB:.1f} GiB available"]
    evidence += [] if limit is None else [f"a limit of {limit:g} GiB (cgroup)"]
    told, fix = "", None
    if now.available / _GIB < _LEAST_FREE_MEMORY_GIB:
        told = f"only {now.available / _GIB:.2f} GiB of memory are free"
        fix = "end what else runs here; the system ends processes when memory runs out"
    elif gpus and total < on_gpus:
        told = f"{total:.0f} GiB of memory for GPUs with {on_gpus:.0f} GiB"
        fix = (
            "saving and loading a model passes through the host's memory: ask for at least as much "
            "as the GPUs have"
        )
    verdict: Verdict = "warning" if told else "ok"
    told = told or f"{total:.1f} GiB of memory, {now.available / _GIB:.1f} GiB of the host free"
    yield Check("host", "memory", verdict, told, tuple(evidence), fix)


def shared_memory(subject: Subject) -> Iterable[Check]:
    """/dev/shm: NCCL between GPUs, and Python's worker processes, exchange through it."""
    path = subject.root / "dev/shm"
    try:
        usage = psutil.disk_usage(str(path))
    except OSError as error:
        told = f"{path} is not there: {error.strerror}"
        fix = "mount a tmpfs there; NCCL and Python's worker processes need it"
        yield Check("host", "/dev/shm", "warning", told, (), fix)
        return
    total, free = usage.total / _GIB, usage.free / _GIB
    kind = container_kind(subject.root, subject.environment)
    where = f"in a container ({kind})" if kind else "not in a container, as far as it shows"
    evidence = (f"{total:.3g} GiB, {free:.3g} GiB free", where)
    if free >= _SHM_GIB:
        yield Check("host", "/dev/shm", "ok", f"{free:.3g} GiB free", evidence)
        return
    fix = {
        "kubernetes": "mount an emptyDir with medium: Memory at /dev/shm",
        "docker": "docker run --shm-size=2g, or --ipc=host",
        "podman": "podman run --shm-size=2g, or --ipc=host",
    }.get(kind or "", f"mount -o remount,size=2G {path}; docker run --shm-size=2g")
    told = f"{free:.3g} GiB free: several GPUs (NCCL) or worker processes may fail for want of it"
    yield Check("host", "/dev/shm", "warning", told, evidence, fix)


def nodes(subject: Subject) -> Iterable[Check]:
    """NUMA nodes: memory next to some cores, and further from others."""
    folders = sorted((subject.root / "sys/devices/system/node").glob("node[0-9]*"))
    found = {each.name: cores_of(text_of(each / "cpulist")) for each in folders}
    found = {name: cores for name, cores in found.items() if cores}
    evidence = tuple(f"{each.name}: cores {text_of(each / 'cpulist')}" for each in folders)
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    used = [name for name, cores in found.items() if cores & own]
    gpus, _ = _gpus()
    if not found:
        yield Check("host", "NUMA nodes", "not here", "the system tells of none")
    elif len(used) > 1 and not gpus:
        told = f"this process may run on {len(used)} NUMA nodes: threads share memory across them"
        evidence += (
            "one training for each node may be faster: numactl --cpunodebind=0 --membind=0",
        )
        yield Check("host", "NUMA nodes", "ok", told, evidence)
    else:
        told = f"{len(found)}, of which this process may run on {len(used)}"
        yield Check("host", "NUMA nodes", "ok", "one" if len(found) == 1 else told, evidence)


def threads(subject: Subject) -> Iterable[Check]:
    """Settings of threads, against the cores that may be used."""
    usable = usable_cores()
    given = {name: subject.environment[name] for name in _THREADS if name in subject.environment}
    evidence = tuple(f"{name}={value}" for name, value in given.items())
    wrong, fixes = [], []
    for name, value in given.items():
        if not value.strip().isdigit():
            wrong.append(f"{name} is not a number")
            fixes.append(f"unset {name}")
        elif int(value) > usable:
            wrong.append(f"{name}={value} is more than the {usable} cores there are")
            fixes.append(f"export {name}={usable}, or unset it")
        elif int(value) == 1 and usable > 1 and name != "TF_NUM_INTEROP_THREADS":
            wrong.append(f"{name}=1 leaves {usable - 1} of {usable} cores unused")
            fixes.append(f"unset {name}")
    if wrong:
        told, fix = "; ".join(wrong), "; ".join(fixes)
        yield Check("host", "threads", "warning", told, evidence, fix)
    else:
        told = "as set" if given else "TensorFlow's own choice, one for each core"
        yield Check("host", "threads", "ok", told, evidence or ("none of " + ", ".join(_THREADS),))


def limits(subject: Subject) -> Iterable[Check]:
    """Limits of the process (ulimit)."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    evidence = [
        f"open files: {_limit(files)}",
        "address space: " + (_limit(space) if space < 0 else f"{space / _GIB:.1f} GiB"),
    ]
    if space != resource.RLIM_INFINITY:
        told = "the address space is limited: CUDA reserves far more of it than it uses, and fails"
        fix = "ulimit -v unlimited, or limit memory by a cgroup"
        yield Check("host", "process limits", "warning", told, tuple(evidence), fix)
    elif 0 <= files < _FEW_FILES:
        told = f"only {files} files may be open: data in many files, and several workers, need more"
        yield Check("host", "process limits", "warning", told, tuple(evidence), "ulimit -n 65536")
    else:
        yield Check("host", "process limits", "ok", "none that matters", tuple(evidence))


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


HOST_INSPECTIONS = (
    Inspection("host", "CPU cores", cores),
    Inspection("host", "memory", memory),
    Inspection("host", "/dev/shm", shared_memory),
    Inspection("host", "NUMA nodes", nodes),
    Inspection("host", "threads", threads),
    Inspection("host", "process limits", limits),
)
