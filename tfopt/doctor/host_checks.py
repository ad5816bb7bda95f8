"""Check the host that feeds the GPUs: cores, memory, threads, /dev/shm and limits."""

from __future__ import annotations

import resource
from collections.abc import Iterable

import psutil

from tfopt.doctor.check import Check, Subject, Verdict
from tfopt.job.cluster_place import usable_cores
from tfopt.measure.machine import container_kind, read_limits
from tfopt.monitor.nvml import device_facts

_GIB = 1024**3
# What decodes, shuffles and copies for one GPU, and the process that starts its kernels: fewer
# cores starve it in common image pipelines (clouds sell 6 to 16 cores with a GPU).
_CORES_A_GPU = 4
# Docker gives 64 MiB; NCCL's buffers and Python's worker processes want more.
_SHM_GIB = 1.0
_LEAST_FREE_MEMORY_GIB = 1.0
_FEW_FILES = 1024


def _gpus() -> tuple[int, float]:
    """Return how many GPUs there are to feed, and their memory in GiB."""
    facts = device_facts()
    if isinstance(facts, str):
        return 0, 0.0
    there = [gpu for gpu in facts if not gpu.lost]
    return len(there), sum(gpu.total_mib or 0.0 for gpu in there) / 1024


def cores(subject: Subject) -> Iterable[Check]:
    """Compare the cores that this process may use with its quota and with the GPUs."""
    usable, quota = usable_cores(), read_limits(subject.root).cpu
    gpus, _ = _gpus()
    evidence = [
        f"{usable} of {psutil.cpu_count() or usable} logical cores by affinity",
        "no quota" if quota is None else f"a quota of {quota:g} cores (cgroup)",
    ]
    effective = usable if quota is None else min(usable, quota)
    verdict: Verdict = "warning"
    fix = None
    if quota is not None and quota < usable:
        text = (
            f"the container may use {quota:g} cores, and TensorFlow starts threads for {usable}: "
            "they are stopped in turns"
        )
        whole = max(int(quota), 1)
        fix = f"export TF_NUM_INTRAOP_THREADS={whole}, or pin as many cores"
    elif effective < gpus * _CORES_A_GPU:
        text = f"{effective:g} cores feed {gpus} GPU(s): an input pipeline may starve them"
        evidence.append(f"rule of thumb: {_CORES_A_GPU} cores for each GPU")
        fix = "ask for more cores, or let tfopt.pipeline() cache and keep the input light"
    else:
        verdict = "ok"
        text = f"{effective:g} cores" + (f" for {gpus} GPU(s)" if gpus else "")
    yield Check("host", "CPU cores", verdict, text, tuple(evidence), fix)


def memory(subject: Subject) -> Iterable[Check]:
    """Compare the memory of the host, or of its container, with that of the GPUs."""
    now = psutil.virtual_memory()
    limit = read_limits(subject.root).memory_gib
    total = now.total / _GIB if limit is None else min(now.total / _GIB, limit)
    gpus, on_gpus = _gpus()
    evidence = [f"{now.total / _GIB:.1f} GiB, {now.available / _GIB:.1f} GiB available"]
    evidence += [] if limit is None else [f"a limit of {limit:g} GiB (cgroup)"]
    verdict: Verdict = "warning"
    fix = None
    if now.available / _GIB < _LEAST_FREE_MEMORY_GIB:
        text = f"only {now.available / _GIB:.2f} GiB of memory are free"
        fix = "end what else runs here; the system ends processes when memory runs out"
    elif gpus and total < on_gpus:
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
