"""Check the GPUs without TensorFlow: driver, visibility and memory."""

from __future__ import annotations

import os
import runpy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tfopt.doctor.check import Check, CheckVerdict, Subject
from tfopt.files import text_of
from tfopt.monitor.nvml import (
    DeviceFacts,
    device_facts,
    driver_version,
    listed_uuids,
    newest_cuda,
    why_no_gpu,
)

_NVIDIA_VENDOR = "0x10de"
_DISPLAY_OR_3D = "0x03"
_UNUSED_MIB = 1024.0  # the driver uses some hundred MiB of an unused GPU


def driver(subject: Subject) -> Iterable[Check]:
    """Check the NVIDIA driver, and that TensorFlow is built for CUDA."""
    version, on_bus = driver_version(), _nvidia_devices(subject)
    build = tensorflow_build()
    built = built_for(build)
    evidence = (
        f"driver {version or 'none'}, CUDA up to {newest_cuda() or 'none'}",
        built,
        f"{on_bus} NVIDIA device(s) on the PCI bus",
    )
    verdict: CheckVerdict = "failure"
    fix: str | None = None
    if version is None and not on_bus:
        verdict, text = "not here", why_no_gpu()
    elif version is None:
        text = f"{on_bus} NVIDIA device(s) on the PCI bus, and no driver: training uses the CPU"
        fix = "install the NVIDIA driver; in a container: docker run --gpus all"
    elif not build.get("is_cuda_build"):
        text = "this TensorFlow is built without CUDA: the GPUs are not used"
        fix = "pip install 'tensorflow[and-cuda]'"
    else:
        verdict, text = "ok", f"driver {version}, {built}"
    yield Check("gpu", "NVIDIA driver", verdict, text, evidence, fix)


def _nvidia_devices(subject: Subject) -> int:
    """Return the number of NVIDIA's graphics and 3D devices on the PCI bus."""
    return sum(
        text_of(device / "vendor") == _NVIDIA_VENDOR
        and text_of(device / "class").startswith(_DISPLAY_OR_3D)
        for device in (subject.root / "sys/bus/pci/devices").glob("*")
    )


def visibility(subject: Subject) -> Iterable[Check]:
    """Check which GPUs are visible by CUDA_VISIBLE_DEVICES."""
    facts, listed = device_facts(), len(listed_uuids())
    if not listed:
        yield Check("gpu", "visible GPUs", "not here", why_no_gpu())
        return
    setting = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    named = [part for part in setting.split(",") if part.strip()]
    evidence = (f"CUDA_VISIBLE_DEVICES={setting!r}", f"the driver lists {listed}")
    if not facts:
        text = f"CUDA_VISIBLE_DEVICES hides all {listed} GPU(s): training uses the CPU"
        fix = "unset CUDA_VISIBLE_DEVICES"
        yield Check("gpu", "visible GPUs", "warning", text, evidence, fix)
        return
    text = ", ".join(f"GPU {n}: {gpu.name}" for n, gpu in enumerate(facts) if not gpu.lost)
    if len(named) > len(facts):
        text = f"CUDA_VISIBLE_DEVICES names {len(named)} GPUs, and CUDA takes {len(facts)}: {text}"
        fix = "correct the first unknown name, at which CUDA stops"
        yield Check("gpu", "visible GPUs", "warning", text, evidence, fix)
    elif text:
        yield Check("gpu", "visible GPUs", "ok", text, evidence)
    for number, gpu in enumerate(facts):
        yield from _unusable(number, gpu)


def _unusable(number: int, gpu: DeviceFacts) -> Iterator[Check]:
    if gpu.lost:
        text = f"GPU {number} is lost: the driver lists it and cannot reach it"
        fix = (
            "dmesg | grep -i -e xid -e nvrm shows the reason; reset it (nvidia-smi --gpu-reset, as "
            "root), or restart the machine; train on the others meanwhile"
        )
        yield Check("gpu", "visible GPUs", "failure", text, (gpu.lost,), fix)
    if gpu.prohibited:
        text = f"GPU {number} ({gpu.name}): its compute mode forbids computations"
        fix = f"nvidia-smi -i {number} -c 0 (as root)"
        yield Check("gpu", "compute mode", "failure", text, (), fix)


def tensorflow_build() -> dict[str, Any]:
    """Return TensorFlow's build information without loading it; empty if there is none."""
    tensorflow = find_spec("tensorflow")
    if tensorflow is None or tensorflow.origin is None:
        return {}
    path = Path(tensorflow.origin).with_name("python") / "platform" / "build_info.py"
    with suppress(OSError, KeyError):
        return dict(runpy.run_path(str(path))["build_info"])
    return {}


def built_for(build: Mapping[str, Any]) -> str:
    """Return which CUDA TensorFlow is built for; a nightly one does not say its version."""
    if not build.get("is_cuda_build"):
        return "TensorFlow built without CUDA"
    return f"TensorFlow built for CUDA {build.get('cuda_version', 'of an unknown version')}"


def memory(subject: Subject) -> Iterable[Check]:
    """Check the free memory of each GPU, and memory growth."""
    grows = subject.environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("true", "1")
    for number, gpu in enumerate(device_facts()):
        if gpu.total_mib is None or gpu.free_mib is None:
            continue
        used = gpu.total_mib - gpu.free_mib
        text = f"GPU {number}: {gpu.free_mib:,.0f} of {gpu.total_mib:,.0f} MiB are free"
        if used <= _UNUSED_MIB:
            takes = "takes what it needs" if grows else "takes nearly all of it at its start"
            yield Check("gpu", "GPU memory", "ok", f"{text}; TensorFlow {takes}")
            continue
        fix = f"end the processes that use {used:,.0f} MiB (nvidia-smi), or choose another GPU"
        if not grows:
            fix += "; to share it: export TF_FORCE_GPU_ALLOW_GROWTH=true"
        text += ": another process uses it"
        yield Check("gpu", "GPU memory", "warning", text, (), fix)
