"""Compare real products, and a real XLA program, with NumPy's on the CPU and each GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfopt.doctor.check import Check, Subject, in_one_line
from tfopt.monitor.nvml import device_facts, why_no_gpu
from tfopt.subprocesses import Answered, ask

_LIMIT_S = 180.0
_SIZE = 256
# The relative error (norms) of a product of this size is about half a unit in the last place of
# its inputs; a few times that is allowed: float32 has 24 bits, TF32 and float16 11, bfloat16 8.
_ALLOWED = {"float32": 1e-5, "tensorfloat32": 2e-3, "float16": 2e-3, "bfloat16": 2e-2, "XLA": 1e-5}
_FIX = (
    "try another driver or TensorFlow version; SIGILL at the import means a CPU without AVX; wrong "
    "numbers on one GPU alone are its own"
)


def compute(asked: Mapping[str, Any]) -> Iterator[str | Mapping[str, Any]]:
    """Yield stages, and one answer for each precision and for XLA; runs in another process."""
    yield "importing TensorFlow"
    import numpy as np
    import tensorflow as tf

    device = asked["device"]
    yield f"looking for {device}"
    if not tf.config.list_physical_devices(device.partition(":")[0]):
        yield {"what": "no device"}
        return
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(_SIZE, _SIZE)).astype("float32") for _ in range(2))
    for what in asked["precisions"]:
        yield what
        try:
            with tf.device(device):
                yield {"what": what, "error": _product_error(a, b, what)}
        except Exception as error:  # the next precision may work
            yield {"what": what, "failed": in_one_line(error)}


def _product_error(a: Any, b: Any, what: str) -> float:
    """Return the relative error of a product, by itself or within a program of XLA's."""
    import numpy as np
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(what == "tensorfloat32")
    dtype = what if what in ("float16", "bfloat16") else "float32"
    x, y = (tf.cast(each, dtype) for each in (a, b))
    multiply = tf.function(tf.matmul, jit_compile=True) if what == "XLA" else tf.matmul
    got = tf.cast(multiply(x, y), tf.float64).numpy()
    # Against the exact product of the very numbers that the device was given.
    exact = np.matmul(*(tf.cast(each, tf.float64).numpy() for each in (x, y)))
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def on_cpu(subject: Subject) -> Iterable[Check]:
    """Check the CPU, with all GPUs hidden."""
    asked = {"device": "CPU:0", "precisions": ["float32", "float16", "bfloat16", "XLA"]}
    yield judge("CPU", ask(compute, asked, _LIMIT_S, {"CUDA_VISIBLE_DEVICES": "-1"}))


def on_gpus(subject: Subject) -> Iterable[Check]:
    """Check each visible GPU in a process that sees only this one."""
    facts = device_facts()
    if isinstance(facts, str) or not facts:
        yield Check("compute", "GPU computation", "not here", why_no_gpu())
        return
    for number, gpu in enumerate(facts):
        if gpu.lost:  # TensorFlow is not to blame for it
            text = f"GPU {number} is lost ({gpu.lost})"
            yield Check("compute", "GPU computation", "not here", text)
            continue
        precisions = ["float32", "float16", "XLA"]
        if gpu.capability is None or gpu.capability >= (8, 0):
            precisions += ["tensorfloat32", "bfloat16"]
        # A GPU that others use is not taken whole for the sake of a check.
        hidden = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        asked = {"device": "GPU:0", "precisions": precisions}
        yield judge(f"GPU {number} ({gpu.name})", ask(compute, asked, _LIMIT_S, hidden))


def judge(where: str, found: Answered) -> Check:
    """Return the check that a device's answers come to."""
    name = f"{where} computation"
    if any(each["what"] == "no device" for each in found.answers):
        text = "the driver lists this GPU, and TensorFlow does not see it"
        fix = "pip install 'tensorflow[and-cuda]', which brings the CUDA libraries of its build"
        return Check("compute", name, "failure", text, (), fix)
    evidence: list[str] = []
    wrong: list[str] = []
    for each in found.answers:
        what, limit = each["what"], _ALLOWED[each["what"]]
        if "failed" in each:
            told = f"{what}: {each['failed']}"
            wrong.append(f"{what} fails")
        else:
            told = f"{what}: relative error {each['error']:.1e}, {limit:g} allowed"
            if not each["error"] <= limit:  # NaN is no agreement either
                wrong.append(f"{what} is wrong")
        evidence.append(told)
    if found.ended is not None:
        wrong.append(f"the process ended while at: {found.at}")
        evidence.append(found.ended)
    if wrong:
        return Check("compute", name, "failure", "; ".join(wrong), tuple(evidence), _FIX)
    done = ", ".join(each["what"] for each in found.answers)
    return Check("compute", name, "ok", f"products ({done}) agree with NumPy", tuple(evidence))
