"""Check each GPU without TensorFlow: hidden or not, memory, capability, PCIe and NUMA."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfopt.doctor.check import Check, Subject, Verdict
from tfopt.files import text_of
from tfopt.measure.provenance import tensorflow_build
from tfopt.monitor.nvml import (
    DeviceFacts,
    device_facts,
    listed_uuids,
    newest_cuda,
    why_no_gpu,
)

# The driver itself holds some hundred MiB of a GPU that nobody uses.
_OWN_MIB = 1024.0
_TENSOR_CORES = (7, 0)


def visible_gpus(subject: Subject) -> Iterable[Check]:
    """Check which GPUs CUDA_VISIBLE_DEVICES leaves, and what they are."""
    facts = device_facts()
    listed = listed_uuids()
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    evidence = (
        f"CUDA_VISIBLE_DEVICES {'is not set' if setting is None else f'= {setting!r}'}",
        f"the driver lists {len(listed)}",
    )
    named = [part.strip() for part in (setting or "").split(",") if part.strip()]
    if isinstance(facts, str) or not listed:
        yield Check("gpu", "visible GPUs", "not here", why_no_gpu())
        return
    if not facts:
        text = f"CUDA_VISIBLE_DEVICES hides all {len(listed)} GPU(s): training uses the CPU"
        fix = "unset CUDA_VISIBLE_DEVICES"
        yield Check("gpu", "visible GPUs", "warning", text, evidence, fix)
        return
    for number, gpu in enumerate(facts):
        if gpu.lost:
            text = f"GPU {number} is lost: the driver lists it and cannot reach it"
            fix = (
                "dmesg | grep -i -e xid -e nvrm tells why; reset it (nvidia-smi --gpu-reset, as "
                "root), or restart the machine; train on the others meanwhile"
            )
            yield Check("gpu", "visible GPUs", "failure", text, (gpu.lost,), fix)
    text = ", ".join(f"GPU {n}: {gpu.name}" for n, gpu in enumerate(facts) if not gpu.lost)
    if len(named) > len(facts):
        text = f"CUDA_VISIBLE_DEVICES names {len(named)} GPUs, and CUDA takes {len(facts)}: {text}"
        fix = "CUDA stops at the first name that it does not know: mend it"
        yield Check("gpu", "visible GPUs", "warning", text, evidence, fix)
    elif text:
        yield Check("gpu", "visible GPUs", "ok", text, evidence)
    for number, gpu in enumerate(facts):
        if gpu.prohibited:
            text = f"GPU {number} ({gpu.name}): its compute mode forbids computations"
            fix = f"nvidia-smi -i {number} -c 0 (as root)"
            yield Check("gpu", "compute mode", "failure", text, (), fix)


def capability(subject: Subject) -> Iterable[Check]:
    """Check whether TensorFlow's build has programs for each GPU."""
    built = [str(each) for each in tensorflow_build().get("cuda_compute_capabilities", ())]
    for number, gpu in _gpus():
        if gpu.capability is not None and built:
            verdict, text, fix = _judge_capability(gpu.capability, built)
            text = f"GPU {number}: {'.'.join(map(str, gpu.capability))}{text}"
            evidence = ("TensorFlow is built for " + ", ".join(built),)
            yield Check("gpu", "compute capability", verdict, text, evidence, fix)


def _judge_capability(
    capability: tuple[int, int], built: list[str]
) -> tuple[Verdict, str, str | None]:
    if capability < min(map(_number, built)):
        older = " is older than anything that TensorFlow is built for"
        return "failure", older, "an older TensorFlow, or another GPU"
    if not _runs_directly(capability, built):
        obstacle = _why_not_compiled(capability, built)
        if obstacle is not None:
            why, fix = obstacle
            return "failure", f": TensorFlow has no programs for it, and {why}", fix
        return "ok", ": its programs are compiled by the driver at the first start", None
    cores = "no tensor cores" if capability < _TENSOR_CORES else "has tensor cores"
    return "ok", f": {cores}", None


def memory(subject: Subject) -> Iterable[Check]:
    """Check memory growth, and who holds memory already."""
    grows = subject.environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("true", "1")
    for number, gpu in _gpus():
        if gpu.total_mib is None or gpu.free_mib is None:
            continue
        held = gpu.total_mib - gpu.free_mib
        text = f"GPU {number}: {gpu.free_mib:,.0f} of {gpu.total_mib:,.0f} MiB are free"
        takes = "takes what it needs" if grows else "takes nearly all of it at its start"
        evidence = (f"TF_FORCE_GPU_ALLOW_GROWTH is {'on' if grows else 'off'}",)
        if held <= _OWN_MIB:
            yield Check("gpu", "GPU memory", "ok", f"{text}; TensorFlow {takes}", evidence)
            continue
        fix = f"end what holds {held:,.0f} MiB (nvidia-smi), or choose another GPU"
        if not grows:
            fix += "; to share it: export TF_FORCE_GPU_ALLOW_GROWTH=true"
        text += ": somebody else works on it"
        yield Check("gpu", "GPU memory", "warning", text, evidence, fix)


def pcie(subject: Subject) -> Iterable[Check]:
    """Tell the PCIe lanes that each GPU has, and those it could have."""
    for number, gpu in _gpus():
        folder = _folder(subject, gpu)
        width, widest = (_whole(folder / f"{n}_link_width") for n in ("current", "max"))
        if not width or not widest:
            continue
        speeds = [text_of(folder / f"{n}_link_speed") for n in ("current", "max")]
        evidence = (f"now {speeds[0]}, at most {speeds[1]}: an idle GPU lowers its speed",)
        text = f"GPU {number}: {width} of {widest} PCIe lanes"
        yield Check("gpu", "PCIe", "ok", text, evidence)


def numa(subject: Subject) -> Iterable[Check]:
    """Tell whether this process may run on the cores that are next to each GPU."""
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    for number, gpu in _gpus():
        folder = _folder(subject, gpu)
        cores = cores_of(text_of(folder / "local_cpulist"))
        node = _whole(folder / "numa_node")
        if not cores or not own:
            continue
        where = f"NUMA node {node}" if node is not None and node >= 0 else "one NUMA node"
        text = f"GPU {number} is next to cores {text_of(folder / 'local_cpulist')} ({where})"
        if not own & cores:
            text += ", and this process may run on none of them"
        yield Check("gpu", "NUMA", "ok", text, (f"affinity: {sorted(own)}",))


def cores_of(listing: str) -> set[int]:
    """Return the cores of a list in Linux's short form, such as ``0-3,8``."""
    found: set[int] = set()
    for part in listing.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _gpus() -> Iterator[tuple[int, DeviceFacts]]:
    facts = device_facts()
    if not isinstance(facts, str):
        yield from enumerate(facts)


def _folder(subject: Subject, gpu: DeviceFacts) -> Path:
    return subject.root / "sys/bus/pci/devices" / (gpu.pci or "none")


def _whole(path: Path) -> int | None:
    try:
        return int(text_of(path))
    except ValueError:
        return None


def _number(built: str) -> tuple[int, int]:
    """Return the capability of ``sm_80`` (programs) or ``compute_90`` (code to compile)."""
    digits = "".join(each for each in built if each.isdigit())
    return int(digits[:-1] or 0), int(digits[-1:] or 0)


def _runs_directly(capability: tuple[int, int], built: list[str]) -> bool:
    """Return whether there are programs of the same major version and no later minor version.

    What is built for ``compute_90`` is not counted as programs: in TensorFlow 2.21's wheel 1,398
    of its 1,398 groups of kernels have code (PTX) for 9.0, and 249 have programs.
    """
    programs = [_number(each) for each in built if each.startswith("sm_")]
    return any(each[0] == capability[0] and each <= capability for each in programs)


def _why_not_compiled(capability: tuple[int, int], built: list[str]) -> tuple[str, str] | None:
    """Return why the driver cannot compile the build's code (PTX), and what to do.

    A driver reads code of its CUDA and of older ones; that programs run on drivers of the same
    major version (minor version compatibility) does not hold for code:
    docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
    """
    if not any(each.startswith("compute_") and _number(each) <= capability for each in built):
        return "no code to compile", "another build of TensorFlow, or another GPU"
    wanted, newest = str(tensorflow_build().get("cuda_version") or ""), newest_cuda()
    if newest is None or not wanted or _release(newest) >= _release(wanted):
        return None
    return (
        f"the driver (CUDA up to {newest}) cannot compile its code of CUDA {wanted}",
        f"install a driver for CUDA {wanted} or newer",
    )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split(".")[:2] if each.isdecimal())
