"""The installed versions against what tfopt is tested on, and CUDA against TensorFlow's build.

Guarantees: TensorFlow is not loaded, and no library is; files and package metadata are read.
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
from typing import Any

from tfopt.doctor.check import Check, Inspection, Subject
from tfopt.doctor.isolated import ask
from tfopt.measure.machine import cpu_flags, cpu_model
from tfopt.measure.provenance import package_versions, tensorflow_build
from tfopt.monitor.nvml import device_facts, driver_version, newest_cuda, why_no_gpu

# Known defects of the installed versions, and which call of tfopt mends each.
#
# Guarantees: each is looked for by its own probe, in a process of its own; nothing is mended.

_LIMIT_S = 300.0
_UNDER_STRATEGIES = "tfopt.distribute()"
# Those that are not of a strategy, by the call that puts them on.
_CALLS = {
    "xla cpu max pool": "tfopt.execution(jit_compile=True)",
    "lost updates": "tfopt.train_asynchronously()",
}


def look_for(asked: Mapping[str, Any], at: Any) -> Iterator[Mapping[str, Any]]:
    """In the process: each repair, and whether it is needed."""
    at("importing TensorFlow")
    import keras
    import tensorflow as tf

    yield {"tensorflow": tf.__version__, "keras": keras.__version__}
    at("probing for defects")
    from tfopt.distribute.mends.repairs_roster import found_here

    for repair, here in found_here():
        yield {"module": repair.name, "here": here, "processes": repair.several_processes_only}


def defects(subject: Subject) -> Iterable[Check]:
    """One check for each call of tfopt that mends something."""
    found = ask("defects", {}, _LIMIT_S)
    if found.ended is not None:
        told = f"could not be looked for: the process ended while at: {found.at}"
        yield Check("defects", "known defects", "warning", told, (found.ended,), "tfopt repairs")
        return
    versions, *answers = found.answers
    here = f"TensorFlow {versions['tensorflow']} and Keras {versions['keras']}"
    yield from judge(here, answers)


def judge(versions: str, answers: Iterable[Mapping[str, Any]]) -> Iterator[Check]:
    """The checks that the answers come to: none is a failure, since each is mended."""
    from tfopt.distribute.mends.repairs_roster import ELSEWHERE, REPAIRS

    told_by = {each["module"]: each["here"] for each in answers}
    by_call: dict[str, list[tuple[Any, bool | None]]] = {}
    for repair in (*REPAIRS, *ELSEWHERE):
        call = _CALLS.get(repair.name, _UNDER_STRATEGIES)
        by_call.setdefault(call, []).append((repair, told_by.get(repair.name)))
    for call, repairs in by_call.items():
        there = [repair for repair, here in repairs if here]
        unknown = [repair for repair, here in repairs if here is None]
        words = [f"{len(there)} here"]
        words += [f"{len(unknown)} only seen in a cluster"] if unknown else []
        gone = len(repairs) - len(there) - len(unknown)
        words += [f"{gone} gone"] if gone else []
        state = {True: "here", False: "gone", None: "only seen in a cluster"}
        evidence = (
            versions,
            *(f"{r.name} ({state[here]}): {r.defect}" + _link(r) for r, here in repairs),
        )
        name = call.removeprefix("tfopt.").partition("(")[0]
        told = f"known defects: {', '.join(words)}; mended inside {call} alone"
        yield Check("defects", name, "ok", told, evidence)


def _link(repair: Any) -> str:
    return f" ({repair.upstream})" if repair.upstream else ""


DEFECT_INSPECTIONS = (Inspection("defects", "known defects", defects, limit_s=None),)


# docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html: the oldest driver
# that runs programs built with any toolkit of that major version.
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_OR_3D = "0x03"
_CUDA = "pip install 'tensorflow[and-cuda]'"


def tested_on(subject: Subject) -> Iterable[Check]:
    """TensorFlow and Keras against the ranges that tfopt declares."""
    found = package_versions()
    told = ", ".join(f"{name} {found[name]}" for name in ("python", "tensorflow", "keras", "numpy")
                     if name in found)  # fmt: skip
    evidence = tuple(f"{name} {version}" for name, version in found.items())
    outside = list(_outside(found))
    if outside:
        fix = "pip install --upgrade tfopt, or the versions it names; other ones are not tested"
        yield Check("versions", "tested versions", "warning", "; ".join(outside), evidence, fix)
    else:
        yield Check("versions", "tested versions", "ok", told, evidence)


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
    """The CPU's vector units: TensorFlow's packages need AVX on x86."""
    flags = cpu_flags()
    told = cpu_model()
    best = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "avx") if name in flags]
    if platform.machine() in ("x86_64", "AMD64") and flags and "avx" not in flags:
        fix = "another machine, or another CPU model of the virtual machine (host passthrough)"
        told += " has no AVX: TensorFlow ends with 'illegal instruction'"
        yield Check("versions", "processor", "failure", told, flags, fix)
        return
    if best:
        half = "float16 and bfloat16 bring nothing on it"
        if best[0].endswith("bf16"):
            half = "without a GPU, fast in bfloat16: tfopt.mixed_precision(model, 'mixed_bfloat16')"
        told += f": {best[0]}; {half}"
    yield Check("versions", "processor", "ok", told, flags)


def driver(subject: Subject) -> Iterable[Check]:
    """The NVIDIA driver: there, and new enough for the CUDA of TensorFlow's build."""
    version, on_bus = driver_version(), list(nvidia_devices(subject.root))
    build = tensorflow_build()
    wanted = str(build.get("cuda_version") or "")
    evidence = [f"driver {version or 'none'}, CUDA up to {newest_cuda() or 'none'}"]
    evidence += [f"TensorFlow built for CUDA {wanted or 'none'}"]
    evidence += [f"NVIDIA device at {place}" for place in on_bus]
    if version is None:
        yield _no_driver(on_bus, evidence)
        return
    facts = device_facts()
    # One that is lost is told with the GPUs: the driver is no worse for it.
    if isinstance(facts, str):
        told = f"the driver does not tell its GPUs: {facts}"
        fix = "nvidia-smi says more; load the driver anew, or restart the machine"
        yield Check("versions", "NVIDIA driver", "failure", told, tuple(evidence), fix)
        return
    major = int(wanted.partition(".")[0]) if wanted[:1].isdigit() else None
    oldest = _OLDEST_DRIVER.get(major or 0)
    if not build.get("is_cuda_build"):
        told = "this TensorFlow is built without CUDA: the GPUs are not used"
        yield Check("versions", "NVIDIA driver", "failure", told, tuple(evidence), _CUDA)
    elif oldest is not None and int(version.partition(".")[0]) < oldest:
        told = f"driver {version} is older than CUDA {major} needs ({oldest})"
        fix = f"install driver {oldest} or newer"
        yield Check("versions", "NVIDIA driver", "failure", told, tuple(evidence), fix)
    else:
        told = f"driver {version} runs CUDA {wanted}"
        if oldest is None:
            told = f"driver {version}; whether it runs CUDA {wanted or '?'} is not known here"
        yield Check("versions", "NVIDIA driver", "ok", told, tuple(evidence))


def _no_driver(on_bus: list[str], evidence: list[str]) -> Check:
    if on_bus:
        return Check(
            "versions",
            "NVIDIA driver",
            "failure",
            f"{len(on_bus)} NVIDIA device(s) on the PCI bus, and no driver: training uses the CPU",
            tuple(evidence),
            "install the NVIDIA driver; in a container: docker run --gpus all",
        )
    evidence = ["no NVIDIA device on the PCI bus", *evidence]
    return Check("versions", "NVIDIA driver", "not here", why_no_gpu(), tuple(evidence))


def nvidia_devices(root: Path) -> Iterator[str]:
    """The PCI addresses of NVIDIA's graphics and 3D devices, whether or not there is a driver."""
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, kind = text_of(folder / "vendor"), text_of(folder / "class")
        if vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_OR_3D):
            yield folder.name


def cuda_libraries(subject: Subject) -> Iterable[Check]:
    """CUDA's runtime and cuDNN, where TensorFlow looks for them."""
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
        told = f"TensorFlow wants {', '.join(missing)}, which is not where it looks"
        yield Check("versions", "CUDA libraries", "failure", told, evidence, _CUDA)
    else:
        told = f"CUDA {cuda} and cuDNN {cudnn} are there"
        yield Check("versions", "CUDA libraries", "ok", told, evidence)


def _library_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Those of NVIDIA's pip packages, which TensorFlow looks into first, then the loader's."""
    for name in ("purelib", "platlib"):
        yield from sorted(Path(sysconfig.get_path(name)).glob("nvidia/*/lib"))
    for entry in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if entry:
            yield Path(entry)
    known = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        told = subprocess.run(
            [known, "-p"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    yield from dict.fromkeys(Path(path).parent for path in re.findall(r"=> (/\S+)", told.stdout))


def _first(name: str, folders: Iterable[Path]) -> Any:
    """With its whole version, where that is in the name of what a link points to."""
    return next((place.resolve() for folder in folders if (place := folder / name).exists()), None)


def text_of(path: Path) -> str:
    """What a small file of the system says; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


VERSION_INSPECTIONS = (
    Inspection("versions", "tested versions", tested_on),
    Inspection("versions", "processor", processor),
    Inspection("versions", "NVIDIA driver", driver),
    Inspection("versions", "CUDA libraries", cuda_libraries),
)
