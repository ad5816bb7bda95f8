"""Real products on a device in each precision, and a real XLA program, against NumPy's.

Guarantees: all of it runs in a process of its own, which is killed at a limit of time; a crash is
told with the precision it came in. The path for a GPU is the CPU's with another device name; it
has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfopt.diagnosis.check import Check, Inspection, Subject, in_one_line
from tfopt.diagnosis.limits import within
from tfopt.diagnosis.process import Answered, ask
from tfopt.monitor.device_facts import device_facts
from tfopt.monitor.nvml import why_no_gpu

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


INSPECTIONS = (
    Inspection("compute", "CPU computation", on_cpu, limit_s=None),
    Inspection("compute", "GPU computation", on_gpus, limit_s=None),
)
