"""Check the host that feeds the GPUs: cores, memory, threads, /dev/shm and limits."""

from __future__ import annotations

import resource
from collections.abc import Iterable

import psutil

from tfopt.doctor.check import Check, Subject, Verdict
from tfopt.job.cgroup import cpu_quota, memory_limit_gib
from tfopt.job.cluster_place import allowed_cores
from tfopt.monitor.nvml import device_facts

_GIB = 1024**3
# Docker gives 64 MiB; NCCL's buffers and Python's worker processes want more.
_SHM_GIB = 1.0
_LEAST_FREE_MEMORY_GIB = 1.0
_FEW_FILES = 1024


def _gib_on_gpus() -> float:
    """Return the memory of the GPUs that there are."""
    facts = device_facts()
    if isinstance(facts, str):
        return 0.0
    return sum(gpu.total_mib or 0.0 for gpu in facts if not gpu.lost) / 1024


def cores(subject: Subject) -> Iterable[Check]:
    """Tell the cores that this process may use, and its quota."""
    usable, quota = allowed_cores(), cpu_quota(subject.root)
    evidence = (
        f"{usable} of {psutil.cpu_count() or usable} logical cores by affinity",
        "no quota" if quota is None else f"a quota of {quota:g} cores (cgroup)",
    )
    text = f"{usable:g} cores"
    if quota is not None and quota < usable:
        text = f"the container may use {quota:g} cores, and TensorFlow starts threads for {usable}"
    yield Check("host", "CPU cores", "ok", text, evidence)


def memory(subject: Subject) -> Iterable[Check]:
    """Compare the memory of the host, or of its container, with that of the GPUs."""
    now = psutil.virtual_memory()
    limit = memory_limit_gib(subject.root)
    total = now.total / _GIB if limit is None else min(now.total / _GIB, limit)
    on_gpus = _gib_on_gpus()
    evidence = [f"{now.total / _GIB:.1f} GiB, {now.available / _GIB:.1f} GiB available"]
    evidence += [] if limit is None else [f"a limit of {limit:g} GiB (cgroup)"]
    verdict: Verdict = "warning"
    fix = None
    if now.available / _GIB < _LEAST_FREE_MEMORY_GIB:
        text = f"only {now.available / _GIB:.2f} GiB of memory are free"
        fix = "end what else runs here; the system ends processes when memory runs out"
    elif total < on_gpus:
        text = f"{total:.0f} GiB of memory for GPUs with {on_gpus:.0f} GiB"
        fix = (
            "saving and loading a model passes through the host's memory: ask for at least as much "
            "as the GPUs have"
        )
    else:
        verdict = "ok"
        text = f"{total:.1f} GiB of memory, {now.available / _GIB:.1f} GiB of the host free"
    yield Check("host", "memory", verdict, text, tuple(evidence), fix)


def shared_memory(subject: Subject) -> Iterable[Check]:
    """Check /dev/shm, through which NCCL and Python's worker processes exchange data."""
    path = subject.root / "dev/shm"
    try:
        usage = psutil.disk_usage(str(path))
    except OSError as error:
        text = f"{path} is not there: {error.strerror}"
        fix = "mount a tmpfs there; NCCL and Python's worker processes need it"
        yield Check("host", "/dev/shm", "warning", text, (), fix)
        return
    total, free = usage.total / _GIB, usage.free / _GIB
    evidence = (f"{total:.3g} GiB, {free:.3g} GiB free",)
    if free >= _SHM_GIB:
        yield Check("host", "/dev/shm", "ok", f"{free:.3g} GiB free", evidence)
        return
    fix = (
        f"mount -o remount,size=2G {path}; in Docker or Podman: --shm-size=2g; in Kubernetes: "
        "mount an emptyDir with medium: Memory there"
    )
    text = f"{free:.3g} GiB free: several GPUs (NCCL) or worker processes may fail for want of it"
    yield Check("host", "/dev/shm", "warning", text, evidence, fix)


def limits(subject: Subject) -> Iterable[Check]:
    """Check the limits of the process (ulimit)."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    evidence = [
        f"open files: {_limit(files)}",
        "address space: " + (_limit(space) if space < 0 else f"{space / _GIB:.1f} GiB"),
    ]
    if space != resource.RLIM_INFINITY:
        text = "the address space is limited: CUDA reserves far more of it than it uses, and fails"
        fix = "ulimit -v unlimited, or limit memory by a cgroup"
        yield Check("host", "process limits", "warning", text, tuple(evidence), fix)
    elif 0 <= files < _FEW_FILES:
        text = f"only {files} files may be open: data in many files, and several workers, need more"
        yield Check("host", "process limits", "warning", text, tuple(evidence), "ulimit -n 65536")
    else:
        yield Check("host", "process limits", "ok", "none that matters", tuple(evidence))


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
