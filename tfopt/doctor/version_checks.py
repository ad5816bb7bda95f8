"""Check the installed versions against what tfopt is tested on, and CUDA against TensorFlow.

Files and package metadata are read; neither TensorFlow nor any library is loaded.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from tfopt.doctor.check import Check, Subject, Verdict
from tfopt.files import text_of
from tfopt.measure.machine import cpu_flags, cpu_model
from tfopt.measure.provenance import package_versions, tensorflow_build
from tfopt.monitor.nvml import device_facts, driver_version, newest_cuda, why_no_gpu

# docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html: the oldest driver
# that runs programs built with any toolkit of that major version.
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_OR_3D = "0x03"
_CUDA = "pip install 'tensorflow[and-cuda]'"


def tested_versions(subject: Subject) -> Iterable[Check]:
    """Compare TensorFlow, Keras and the others with the ranges that tfopt declares."""
    found = package_versions()
    evidence = tuple(f"{name} {version}" for name, version in found.items())
    outside = list(_outside(found))
    if outside:
        fix = "pip install --upgrade tfopt, or the versions it names; other ones are not tested"
        yield Check("versions", "tested versions", "warning", "; ".join(outside), evidence, fix)
    else:
        names = [name for name in ("python", "tensorflow", "keras", "numpy") if name in found]
        text = ", ".join(f"{name} {found[name]}" for name in names)
        yield Check("versions", "tested versions", "ok", text, evidence)


def _outside(found: Mapping[str, str]) -> Iterator[str]:
    from packaging.requirements import Requirement

    try:
        declared = [Requirement(line) for line in requires("tfopt") or ()]
    except PackageNotFoundError:  # run from its source folder
        return
    for each in declared:
        if each.marker is None and each.name in found:
            version = found[each.name]
            if not each.specifier.contains(version, prereleases=True):
                yield f"{each.name} {version} is not in {each.specifier}"


def processor(subject: Subject) -> Iterable[Check]:
    """Check the CPU's vector units: TensorFlow's packages need AVX on x86."""
    flags = cpu_flags()
    text = cpu_model()
    best = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "avx") if name in flags]
    if platform.machine() in ("x86_64", "AMD64") and flags and "avx" not in flags:
        fix = "another machine, or another CPU model of the virtual machine (host passthrough)"
        text += " has no AVX: TensorFlow ends with 'illegal instruction'"
        yield Check("versions", "processor", "failure", text, flags, fix)
        return
    if best:
        text += f": {best[0]}"
    yield Check("versions", "processor", "ok", text, flags)


def driver(subject: Subject) -> Iterable[Check]:
    """Check that the NVIDIA driver is there, and new enough for the CUDA of TensorFlow's build."""
    version, on_bus = driver_version(), list(nvidia_devices(subject.root))
    build = tensorflow_build()
    wanted = str(build.get("cuda_version") or "")
    evidence = (
        *(() if version or on_bus else ("no NVIDIA device on the PCI bus",)),
        f"driver {version or 'none'}, CUDA up to {newest_cuda() or 'none'}",
        f"TensorFlow built for CUDA {wanted or 'none'}",
        *(f"NVIDIA device at {place}" for place in on_bus),
    )
    facts = device_facts()
    major = int(wanted.partition(".")[0]) if wanted[:1].isdigit() else 0
    oldest = _OLDEST_DRIVER.get(major)
    verdict: Verdict = "failure"
    fix: str | None = None
    if version is None and not on_bus:
        verdict, text = "not here", why_no_gpu()
    elif version is None:
        text = (
            f"{len(on_bus)} NVIDIA device(s) on the PCI bus, and no driver: training uses the CPU"
        )
        fix = "install the NVIDIA driver; in a container: docker run --gpus all"
    elif isinstance(facts, str):  # the GPU checks find a single lost GPU
        text = f"the driver does not list its GPUs: {facts}"
        fix = "nvidia-smi says more; load the driver anew, or restart the machine"
    elif not build.get("is_cuda_build"):
        text = "this TensorFlow is built without CUDA: the GPUs are not used"
        fix = _CUDA
    elif oldest is None:
        verdict = "ok"
        text = f"driver {version}; whether it runs CUDA {wanted or '?'} is not known here"
    elif int(version.partition(".")[0]) < oldest:
        text = f"driver {version} is older than CUDA {major} needs ({oldest})"
        fix = f"install driver {oldest} or newer"
    else:
        verdict, text = "ok", f"driver {version} runs CUDA {wanted}"
    yield Check("versions", "NVIDIA driver", verdict, text, evidence, fix)


def nvidia_devices(root: Path) -> Iterator[str]:
    """Yield the PCI addresses of NVIDIA's graphics and 3D devices, driver or not."""
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, kind = text_of(folder / "vendor"), text_of(folder / "class")
        if vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_OR_3D):
            yield folder.name


def cuda_libraries(subject: Subject) -> Iterable[Check]:
    """Check that CUDA's runtime and cuDNN are where TensorFlow looks for them."""
    build = tensorflow_build()
    facts = device_facts()
    if isinstance(facts, str) or not facts or not build.get("is_cuda_build"):
        yield Check("versions", "CUDA libraries", "not here", why_no_gpu())
        return
    cuda = str(build.get("cuda_version", "")).partition(".")[0]
    cudnn = str(build.get("cudnn_version", "")).partition(".")[0]
    wanted = (f"libcudart.so.{cuda}", f"libcublas.so.{cuda}", f"libcudnn.so.{cudnn}")
    folders = list(_library_folders(subject.environment))
    found = {name: _first(name, folders) for name in wanted}
    evidence = tuple(f"{name}: {place or 'not found'}" for name, place in found.items())
    packages = package_versions()
    evidence += tuple(f"{n} {v}" for n, v in packages.items() if n.startswith("nvidia-cu"))
    missing = [name for name, place in found.items() if place is None]
    if missing:
        text = f"TensorFlow wants {', '.join(missing)}, which is not where it looks"
        yield Check("versions", "CUDA libraries", "failure", text, evidence, _CUDA)
    else:
        text = f"CUDA {cuda} and cuDNN {cudnn} are there"
        yield Check("versions", "CUDA libraries", "ok", text, evidence)


def _library_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield those of NVIDIA's pip packages, which TensorFlow searches first, then the loader's."""
    for name in ("purelib", "platlib"):
        yield from sorted(Path(sysconfig.get_path(name)).glob("nvidia/*/lib"))
    for entry in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if entry:
            yield Path(entry)
    command = [shutil.which("ldconfig") or "/sbin/ldconfig", "-p"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    yield from dict.fromkeys(Path(path).parent for path in re.findall(r"=> (/\S+)", done.stdout))


def _first(name: str, folders: Iterable[Path]) -> Path | None:
    """Return the file that the name links to, which may have the whole version in its name."""
    return next((place.resolve() for folder in folders if (place := folder / name).exists()), None)
