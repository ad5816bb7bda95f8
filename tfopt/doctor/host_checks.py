"""Check the host that feeds the GPUs: versions, cores, memory, /dev/shm and the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

import psutil

from tfopt.distribute.replicas import require_metrics_of_replicas
from tfopt.doctor.check import Check, Subject
from tfopt.errors import UserError
from tfopt.job.cgroup import allowed_cores, cpu_quota, memory_limit_gib
from tfopt.job.versions import library_versions, unsupported
from tfopt.keras_internals import lacking
from tfopt.measure.provenance import cpu_model, package_versions
from tfopt.monitor.nvml import gpu_memories

_GIB = 1024**3
_SHM_GIB = 1.0  # for NCCL's buffers and worker processes; Docker's default is 64 MiB
_FREE_MEMORY_GIB = 1.0
_FREE_DISK_GIB = 2.0


def versions(subject: Subject) -> Iterable[Check]:
    """List the versions of TensorFlow, Keras and other packages, and what does not work."""
    installed = package_versions()
    evidence = tuple(f"{name} {version}" for name, version in installed.items())
    libraries = library_versions()  # also of tf-nightly, tensorflow-cpu and keras-nightly
    numbers = [("python", installed["python"]), *libraries.items(), ("numpy", installed["numpy"])]
    text = ", ".join(f"{name} {number}" for name, number in numbers)
    yield Check("host", "versions", "ok", text, evidence)
    for error in unsupported():
        text = f"{error.what} Found: {error.received}"
        yield Check("host", "versions", "failure", text, (), error.fix)
    if "Keras" not in libraries:
        return
    try:
        require_metrics_of_replicas()
    except UserError as error:
        text = f"distribute() is refused: {error.what} Found: {error.received}"
        yield Check("host", "versions", "warning", text, (), error.fix)
    for name, functions in lacking().items():
        text = f"this Keras has no {name}, without which this does not work: {functions}"
        fix = "pip install 'keras~=3.15.0', which has it, or a newer tfopt"
        yield Check("host", "versions", "warning", text, (), fix)


def cores(subject: Subject) -> Iterable[Check]:
    """Report the cores that this process may use, of which processor, and the quota."""
    usable, quota = allowed_cores(), cpu_quota(subject.root)
    text = f"{usable:g} cores of {cpu_model()}"
    if quota is not None and quota < usable:
        text = f"the container may use {quota:g} cores, and TensorFlow starts threads for {usable}"
    yield Check("host", "CPU cores", "ok", text)


def memory(subject: Subject) -> Iterable[Check]:
    """Compare the memory of the host, or of its container, with that of the GPUs."""
    now, limit = psutil.virtual_memory(), memory_limit_gib(subject.root)
    total, free = now.total / _GIB, now.available / _GIB
    evidence = [f"{total:.1f} GiB, {free:.1f} GiB available"]
    if limit is not None:
        evidence.append(f"a limit of {limit:g} GiB (cgroup)")
        total = min(total, limit)
    on_gpus = sum(gpu.total_mib for gpu in gpu_memories()) / 1024
    text, fix = f"{total:.1f} GiB of memory, {free:.1f} GiB of the host free", None
    if free < _FREE_MEMORY_GIB:
        fix = "end other processes; the system kills processes when memory runs out"
    elif total < on_gpus:
        text = f"{total:.0f} GiB of memory for GPUs with {on_gpus:.0f} GiB"
        fix = "request at least the memory of the GPUs: models are saved and loaded through it"
    yield Check("host", "memory", "warning" if fix else "ok", text, tuple(evidence), fix)


def shared_memory(subject: Subject) -> Iterable[Check]:
    """Check /dev/shm, through which NCCL and Python's worker processes exchange data."""
    path = subject.root / "dev/shm"
    try:
        free = psutil.disk_usage(str(path)).free / _GIB
    except OSError as error:
        text, fix = f"{path} does not exist: {error.strerror}", "mount a tmpfs there"
        yield Check("host", "/dev/shm", "warning", text, (), fix)
        return
    if free >= _SHM_GIB:
        yield Check("host", "/dev/shm", "ok", f"{free:.3g} GiB free")
        return
    fix = (
        f"mount -o remount,size=2G {path}; in Docker or Podman: --shm-size=2g; in Kubernetes: "
        "mount an emptyDir with medium: Memory there"
    )
    text = f"{free:.3g} GiB free: several GPUs (NCCL) or worker processes may need more"
    yield Check("host", "/dev/shm", "warning", text, (), fix)


def disk(subject: Subject) -> Iterable[Check]:
    """Check the space in the folder for temporary files."""
    folder = tempfile.gettempdir()
    free = psutil.disk_usage(folder).free / _GIB
    text = f"{free:.3g} GiB free in {folder}"
    fix = "free space: caches and checkpoints need it" if free < _FREE_DISK_GIB else None
    yield Check("host", "free space", "warning" if fix else "ok", text, (), fix)
