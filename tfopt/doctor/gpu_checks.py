"""Each GPU as it will be used: hidden or not, its memory, TF32, capability, PCIe and NUMA.

Guarantees: NVML, ``/sys`` and variables are read; TensorFlow is not loaded and nothing is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfopt.doctor.check import Check, Inspection, Subject, in_one_line, within
from tfopt.doctor.isolated import Answered, ask
from tfopt.doctor.version_checks import text_of
from tfopt.measure.provenance import tensorflow_build
from tfopt.monitor.nvml import (
    DeviceFacts,
    device_facts,
    listed_uuids,
    newest_cuda,
    ways_between,
    why_no_gpu,
)

# Real products on a device in each precision, and a real XLA program, against NumPy's.
#
# Guarantees: all of it runs in a process of its own, which is killed at a limit of time; a crash
# is told with the precision it came in. The path for a GPU is the CPU's with another device name;
# it has not run on a GPU yet.

_LIMIT_S = 180.0
_LISTING_S = 20.0
_SIZE = 256
# The relative error (norms) of a product of this size is about half a unit in the last place of
# its inputs; a few times that is allowed: float32 has 24 bits, TF32 and float16 11, bfloat16 8.
_ALLOWED = {"float32": 1e-5, "tensorfloat32": 2e-3, "float16": 2e-3, "bfloat16": 2e-2, "XLA": 1e-5}


def compute(asked: Mapping[str, Any], at: Any) -> Iterator[Mapping[str, Any]]:
    """In the process: one answer for each precision, and one for XLA."""
    at("importing TensorFlow")
    import numpy as np
    import tensorflow as tf

    device = asked["device"]
    at(f"looking for {device}")
    kind = device.partition(":")[0]
    visible = tf.config.list_physical_devices(kind)
    yield {"what": "devices", "count": len(visible), "tensorflow": tf.__version__}
    if not visible:
        return
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(_SIZE, _SIZE)).astype("float32") for _ in range(2))
    for what in asked["precisions"]:
        at(what)
        yield {"what": what, **_tried(lambda what=what: _product(tf, a, b, device, what))}
    at("XLA")
    yield {"what": "XLA", **_tried(lambda: _compiled(tf, a, b, device))}


def _tried(work: Any) -> dict[str, Any]:
    try:
        return {"error": work()}
    except Exception as error:  # told as it is: the next precision may do
        return {"failed": in_one_line(error)}


def _product(tf: Any, a: Any, b: Any, device: str, what: str) -> float:
    import numpy as np

    kind = "float32" if what == "tensorfloat32" else what
    tf.config.experimental.enable_tensor_float_32_execution(what == "tensorfloat32")
    with tf.device(device):
        x, y = (tf.cast(each, kind) for each in (a, b))
        got = tf.cast(tf.matmul(x, y), tf.float64).numpy()
    # Against the exact product of the very numbers that the device was given.
    given = [tf.cast(each, tf.float64).numpy() for each in (x, y)]
    exact = given[0] @ given[1]
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def _compiled(tf: Any, a: Any, b: Any, device: str) -> float:
    import numpy as np

    tf.config.experimental.enable_tensor_float_32_execution(False)

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def program(x: Any, y: Any) -> Any:
        return tf.nn.relu(tf.matmul(x, y)) + 1.0

    with tf.device(device):
        got = program(tf.constant(a), tf.constant(b)).numpy().astype("float64")
    exact = np.maximum(a.astype("float64") @ b.astype("float64"), 0.0) + 1.0
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def on_cpu(subject: Subject) -> Iterable[Check]:
    """The CPU, with all GPUs hidden."""
    asked = {"device": "CPU:0", "precisions": ["float32", "float16", "bfloat16"]}
    found = ask("compute", asked, _LIMIT_S, {"CUDA_VISIBLE_DEVICES": "-1"})
    return judge("CPU", found)


def on_gpus(subject: Subject) -> Iterable[Check]:
    """Each visible GPU in a process that sees only this one."""
    facts = within(_LISTING_S, device_facts)
    if isinstance(facts, str) or not facts:
        yield Check("compute", "GPU computation", "not here", why_no_gpu())
        return
    for number, gpu in enumerate(facts):
        if gpu.lost:  # told with the GPUs; TensorFlow is not to blame for it
            name = f"GPU {number} ({gpu.name}) computation"
            yield Check("compute", name, "not here", f"GPU {number} is lost ({gpu.lost})")
            continue
        precisions = ["float32", "float16"]
        if gpu.capability is None or gpu.capability >= (8, 0):
            precisions += ["tensorfloat32", "bfloat16"]
        # A GPU that others use is not taken whole for the sake of a check.
        hidden = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        asked = {"device": "GPU:0", "precisions": precisions}
        yield from judge(f"GPU {number} ({gpu.name})", ask("compute", asked, _LIMIT_S, hidden))


def judge(where: str, found: Answered) -> list[Check]:
    """The checks that the answers come to."""
    name = f"{where} computation"
    by_name = {each["what"]: each for each in found.answers}
    devices = by_name.pop("devices", None)
    if devices is not None and not devices["count"]:
        return [
            Check(
                "compute",
                name,
                "failure",
                "the driver lists this GPU, and TensorFlow does not see it",
                (f"TensorFlow {devices['tensorflow']}",),
                "pip install 'tensorflow[and-cuda]', which brings the CUDA libraries of its build",
            )
        ]
    checks = []
    if found.ended is not None:
        told = f"the process ended while at: {found.at}"
        checks.append(Check("compute", name, "failure", told, (found.ended,), _fix(found)))
    products = {what: each for what, each in by_name.items() if what != "XLA"}
    if products:
        checks.append(_judged(name, "products", products))
    if "XLA" in by_name:
        checks.append(_judged(f"{where} XLA", "a compiled program", {"XLA": by_name["XLA"]}))
    return checks


def _judged(name: str, what: str, answers: Mapping[str, Mapping[str, Any]]) -> Check:
    evidence, wrong = [], []
    for each, answer in answers.items():
        if "failed" in answer:
            evidence.append(f"{each}: {answer['failed']}")
            wrong.append(f"{each} fails")
            continue
        evidence.append(f"{each}: relative error {answer['error']:.1e}, {_ALLOWED[each]:g} allowed")
        # Not a number is no agreement either.
        if not answer["error"] <= _ALLOWED[each]:
            wrong.append(f"{each} is wrong")
    if wrong:
        fix = "try another driver or TensorFlow version; wrong numbers on one GPU alone are its own"
        return Check("compute", name, "failure", "; ".join(wrong), tuple(evidence), fix)
    shown = "" if tuple(answers) == ("XLA",) else f" ({', '.join(answers)})"
    verb = "agrees" if what.startswith("a ") else "agree"
    return Check("compute", name, "ok", f"{what}{shown} {verb} with NumPy", tuple(evidence))


def _fix(found: Answered) -> str:
    if found.at in ("importing TensorFlow", "starting Python"):
        return "python -c 'import tensorflow' shows the whole message; reinstall TensorFlow"
    return "update the driver, or try TensorFlow's own CUDA libraries: tensorflow[and-cuda]"


COMPUTING_INSPECTIONS = (
    Inspection("compute", "CPU computation", on_cpu, limit_s=None),
    Inspection("compute", "GPU computation", on_gpus, limit_s=None),
)


# The driver itself holds some hundred MiB of a GPU that nobody uses.
_OWN_MIB = 1024.0
_TF32_SINCE = (8, 0)
_TENSOR_CORES = (7, 0)


def visible(subject: Subject) -> Iterable[Check]:
    """Which GPUs CUDA_VISIBLE_DEVICES leaves, and what they are."""
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
        told = f"CUDA_VISIBLE_DEVICES hides all {len(listed)} GPU(s): training uses the CPU"
        fix = "unset CUDA_VISIBLE_DEVICES"
        if len(set(named)) < len(named):
            told += "; CUDA takes none where one is named twice"
        yield Check("gpu", "visible GPUs", "warning", told, evidence, fix)
        return
    yield from _lost(facts)
    told = ", ".join(f"GPU {n}: {gpu.name}" for n, gpu in enumerate(facts) if not gpu.lost)
    if len(named) > len(facts):
        told = f"CUDA_VISIBLE_DEVICES names {len(named)} GPUs, and CUDA takes {len(facts)}: {told}"
        fix = "CUDA stops at the first name that it does not know: mend it"
        yield Check("gpu", "visible GPUs", "warning", told, evidence, fix)
    elif told:
        yield Check("gpu", "visible GPUs", "ok", told, evidence)
    for number, gpu in enumerate(facts):
        if gpu.prohibited:
            told = f"GPU {number} ({gpu.name}): its compute mode forbids computations"
            fix = f"nvidia-smi -i {number} -c 0 (as root)"
            yield Check("gpu", "compute mode", "failure", told, (), fix)


def _lost(facts: list[DeviceFacts]) -> Iterator[Check]:
    for number, gpu in enumerate(facts):
        if gpu.lost:
            fix = (
                "dmesg | grep -i -e xid -e nvrm tells why; reset it (nvidia-smi --gpu-reset, as "
                "root), or restart the machine; train on the others meanwhile"
            )
            told = f"GPU {number} is lost: the driver lists it and cannot reach it"
            yield Check("gpu", "visible GPUs", "failure", told, (gpu.lost,), fix)


def capability(subject: Subject) -> Iterable[Check]:
    """Whether TensorFlow's build has programs for this GPU."""
    built = [str(each) for each in tensorflow_build().get("cuda_compute_capabilities", ())]
    for number, gpu in _each():
        if gpu.capability is None or not built:
            continue
        name, told = "compute capability", f"GPU {number}: {_dotted(gpu.capability)}"
        evidence = ("TensorFlow is built for " + ", ".join(built),)
        if gpu.capability < min(map(_number, built)):
            told += " is older than anything that TensorFlow is built for"
            fix = "an older TensorFlow, or another GPU"
            yield Check("gpu", name, "failure", told, evidence, fix)
        elif not _runs_directly(gpu.capability, built) and (
            why := _not_compiled(gpu.capability, built)
        ):
            told += f": TensorFlow has no programs for it, and {why[0]}"
            yield Check("gpu", name, "failure", told, evidence, why[1])
        elif not _runs_directly(gpu.capability, built):
            told += ": its programs are compiled by the driver at the first start, for minutes"
            fix = "keep the driver's cache: export CUDA_CACHE_MAXSIZE=4294967296"
            yield Check("gpu", name, "warning", told, evidence, fix)
        elif gpu.capability < _TENSOR_CORES:
            told += ": no tensor cores, so half precision saves memory only"
            yield Check("gpu", name, "ok", told, evidence)
        else:
            yield Check("gpu", name, "ok", told + ": has tensor cores", evidence)


def memory(subject: Subject) -> Iterable[Check]:
    """Memory growth, and who holds memory already."""
    grows = subject.environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("true", "1")
    for number, gpu in _each():
        if gpu.total_mib is None or gpu.free_mib is None:
            continue
        held = gpu.total_mib - gpu.free_mib
        told = f"GPU {number}: {gpu.free_mib:,.0f} of {gpu.total_mib:,.0f} MiB are free"
        takes = "takes what it needs" if grows else "takes nearly all of it at its start"
        evidence = (f"TF_FORCE_GPU_ALLOW_GROWTH is {'on' if grows else 'off'}",)
        if held <= _OWN_MIB:
            yield Check("gpu", "GPU memory", "ok", f"{told}; TensorFlow {takes}", evidence)
            continue
        fix = f"end what holds {held:,.0f} MiB (nvidia-smi), or choose another GPU"
        if not grows:
            fix += "; to share it: export TF_FORCE_GPU_ALLOW_GROWTH=true"
        told += ": somebody else works on it"
        yield Check("gpu", "GPU memory", "warning", told, evidence, fix)


def tf32(subject: Subject) -> Iterable[Check]:
    """TF32: products of float32 on tensor cores, unless something has switched it off."""
    override = subject.environment.get("NVIDIA_TF32_OVERRIDE")
    able = [n for n, gpu in _each() if gpu.capability and gpu.capability >= _TF32_SINCE]
    if not able:
        told = "no GPU here has it (Ampere or newer)" if list(_each()) else why_no_gpu()
        yield Check("gpu", "TF32", "not here", told)
    elif override == "0":
        told = "NVIDIA_TF32_OVERRIDE=0 switches it off: float32 products take several times as long"
        fix = "unset NVIDIA_TF32_OVERRIDE, unless 24 bits of mantissa are wanted"
        yield Check("gpu", "TF32", "warning", told, (), fix)
    else:
        told = "on, as TensorFlow has it: products of float32 keep 11 bits of mantissa"
        off = "tf.config.experimental.enable_tensor_float_32_execution(False) switches it off"
        yield Check("gpu", "TF32", "ok", told, (off,))


def pcie(subject: Subject) -> Iterable[Check]:
    """The lanes that each GPU has, against those it could have."""
    for number, gpu in _each():
        folder = _folder(subject, gpu)
        width, widest = (_whole(folder / f"{n}_link_width") for n in ("current", "max"))
        if not width or not widest:
            continue
        speeds = [text_of(folder / f"{n}_link_speed") for n in ("current", "max")]
        evidence = (f"now {speeds[0]}, at most {speeds[1]}: an idle GPU lowers its speed",)
        told = f"GPU {number}: {width} of {widest} PCIe lanes"
        if width < widest:
            fix = "another slot, or seat the card and its riser anew; a virtual machine may hide it"
            yield Check("gpu", "PCIe", "warning", told, evidence, fix)
        else:
            yield Check("gpu", "PCIe", "ok", told, evidence)


def numa(subject: Subject) -> Iterable[Check]:
    """Whether this process may run on the cores that are next to the GPU."""
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    for number, gpu in _each():
        folder = _folder(subject, gpu)
        cores = cores_of(text_of(folder / "local_cpulist"))
        node = _whole(folder / "numa_node")
        if not cores or not own:
            continue
        where = f"NUMA node {node}" if node is not None and node >= 0 else "one NUMA node"
        told = f"GPU {number} is next to cores {text_of(folder / 'local_cpulist')} ({where})"
        if not own & cores:
            told += ", and this process may run on none of them: every copy crosses the CPUs' link"
            fix = f"numactl --cpunodebind={node} --membind={node} python ..."
            yield Check("gpu", "NUMA", "warning", told, (f"affinity: {sorted(own)}",), fix)
        else:
            yield Check("gpu", "NUMA", "ok", told)
    for (first, second), way in ways_between().items():
        told = f"GPU {first} and GPU {second} reach each other over {way} (PCIe)"
        yield Check("gpu", "topology", "ok", told, ("NVLink, where there is one, is not in this",))


def cores_of(listing: str) -> set[int]:
    """The cores in Linux's short form: ``0-3,8``."""
    found: set[int] = set()
    for part in listing.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _each() -> Iterator[tuple[int, DeviceFacts]]:
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
    """``sm_80`` (programs for it) or ``compute_90`` (code for it and all that come later)."""
    digits = "".join(each for each in built if each.isdigit())
    return int(digits[:-1] or 0), int(digits[-1:] or 0)


def _runs_directly(capability: tuple[int, int], built: list[str]) -> bool:
    """A program runs on later minor versions of the same major version.

    What is built for ``compute_90`` is not counted as programs: in TensorFlow 2.21's wheel 1,398
    of its 1,398 groups of kernels have code (PTX) for 9.0, and 249 have programs.
    """
    programs = [_number(each) for each in built if each.startswith("sm_")]
    return any(each[0] == capability[0] and each <= capability for each in programs)


def _not_compiled(capability: tuple[int, int], built: list[str]) -> tuple[str, str] | None:
    """Why the driver cannot compile the build's code (PTX), and what to do.

    A driver reads code of its own CUDA and of older ones; that programs run on drivers of the same
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
    """Major and minor."""
    return tuple(int(each) for each in version.split(".")[:2] if each.isdecimal())


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


GPU_INSPECTIONS = (
    Inspection("gpu", "visible GPUs", visible),
    Inspection("gpu", "compute capability", capability),
    Inspection("gpu", "GPU memory", memory),
    Inspection("gpu", "TF32", tf32),
    Inspection("gpu", "PCIe", pcie),
    Inspection("gpu", "NUMA", numa),
)
