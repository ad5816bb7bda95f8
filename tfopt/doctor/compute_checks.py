"""Compare real products, and a real XLA program, with NumPy's on the CPU and each GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfopt.doctor.check import Check, Subject, in_one_line
from tfopt.doctor.isolated import Answered, ask
from tfopt.export.child import in_time
from tfopt.monitor.nvml import device_facts, why_no_gpu

_LIMIT_S = 180.0
_LISTING_S = 20.0
_SIZE = 256
# The relative error (norms) of a product of this size is about half a unit in the last place of
# its inputs; a few times that is allowed: float32 has 24 bits, TF32 and float16 11, bfloat16 8.
_ALLOWED = {"float32": 1e-5, "tensorfloat32": 2e-3, "float16": 2e-3, "bfloat16": 2e-2, "XLA": 1e-5}


def compute(asked: Mapping[str, Any]) -> Iterator[str | Mapping[str, Any]]:
    """Yield stages, and one answer for each precision and for XLA; runs in another process."""
    yield "importing TensorFlow"
    import numpy as np
    import tensorflow as tf

    device = asked["device"]
    yield f"looking for {device}"
    visible = tf.config.list_physical_devices(device.partition(":")[0])
    yield {"what": "devices", "count": len(visible), "tensorflow": tf.__version__}
    if not visible:
        return
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(_SIZE, _SIZE)).astype("float32") for _ in range(2))
    for what in [*asked["precisions"], "XLA"]:
        yield what
        try:
            with tf.device(device):
                error = _xla_error(a, b) if what == "XLA" else _product_error(a, b, what)
            yield {"what": what, "error": error}
        except Exception as error:  # the next precision may work
            yield {"what": what, "failed": in_one_line(error)}


def _product_error(a: Any, b: Any, precision: str) -> float:
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(precision == "tensorfloat32")
    dtype = "float32" if precision == "tensorfloat32" else precision
    x, y = (tf.cast(each, dtype) for each in (a, b))
    got = tf.cast(tf.matmul(x, y), tf.float64).numpy()
    # Against the exact product of the very numbers that the device was given.
    x, y = (tf.cast(each, tf.float64).numpy() for each in (x, y))
    return _relative_error(got, x @ y)


def _xla_error(a: Any, b: Any) -> float:
    import numpy as np
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def program(x: Any, y: Any) -> Any:
        return tf.nn.relu(tf.matmul(x, y)) + 1.0

    got = program(tf.constant(a), tf.constant(b)).numpy().astype("float64")
    return _relative_error(got, np.maximum(a.astype("float64") @ b.astype("float64"), 0.0) + 1.0)


def _relative_error(got: Any, exact: Any) -> float:
    import numpy as np

    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def on_cpu(subject: Subject) -> Iterable[Check]:
    """Check the CPU, with all GPUs hidden."""
    asked = {"device": "CPU:0", "precisions": ["float32", "float16", "bfloat16"]}
    return judge("CPU", ask(compute, asked, _LIMIT_S, {"CUDA_VISIBLE_DEVICES": "-1"}))


def on_gpus(subject: Subject) -> Iterable[Check]:
    """Check each visible GPU in a process that sees only this one."""
    facts = in_time(_LISTING_S, device_facts)
    if isinstance(facts, str) or not facts:
        yield Check("compute", "GPU computation", "not here", why_no_gpu())
        return
    for number, gpu in enumerate(facts):
        where = f"GPU {number} ({gpu.name})"
        if gpu.lost:  # TensorFlow is not to blame for it
            text = f"GPU {number} is lost ({gpu.lost})"
            yield Check("compute", f"{where} computation", "not here", text)
            continue
        precisions = ["float32", "float16"]
        if gpu.capability is None or gpu.capability >= (8, 0):
            precisions += ["tensorfloat32", "bfloat16"]
        # A GPU that others use is not taken whole for the sake of a check.
        hidden = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        asked = {"device": "GPU:0", "precisions": precisions}
        yield from judge(where, ask(compute, asked, _LIMIT_S, hidden))


def judge(where: str, found: Answered) -> list[Check]:
    """Return the checks that a device's answers come to."""
    name = f"{where} computation"
    by_name = {each["what"]: each for each in found.answers}
    devices = by_name.pop("devices", None)
    if devices is not None and not devices["count"]:
        text = "the driver lists this GPU, and TensorFlow does not see it"
        evidence = (f"TensorFlow {devices['tensorflow']}",)
        fix = "pip install 'tensorflow[and-cuda]', which brings the CUDA libraries of its build"
        return [Check("compute", name, "failure", text, evidence, fix)]
    checks = []
    if found.ended is not None:
        text = f"the process ended while at: {found.at}"
        fix = "update the driver, or try TensorFlow's own CUDA libraries: tensorflow[and-cuda]"
        if found.at in ("importing TensorFlow", "starting Python"):
            fix = "python -c 'import tensorflow' shows the whole message; reinstall TensorFlow"
        checks.append(Check("compute", name, "failure", text, (found.ended,), fix))
    xla = by_name.pop("XLA", None)
    if by_name:
        agree = f"products ({', '.join(by_name)}) agree with NumPy"
        checks.append(_compared(name, agree, by_name))
    if xla is not None:
        agrees = "a compiled program agrees with NumPy"
        checks.append(_compared(f"{where} XLA", agrees, {"XLA": xla}))
    return checks


def _compared(name: str, agree: str, answers: Mapping[str, Mapping[str, Any]]) -> Check:
    evidence, wrong = [], []
    for each, answer in answers.items():
        if "failed" in answer:
            evidence.append(f"{each}: {answer['failed']}")
            wrong.append(f"{each} fails")
            continue
        evidence.append(f"{each}: relative error {answer['error']:.1e}, {_ALLOWED[each]:g} allowed")
        if not answer["error"] <= _ALLOWED[each]:  # NaN is no agreement either
            wrong.append(f"{each} is wrong")
    if wrong:
        fix = "try another driver or TensorFlow version; wrong numbers on one GPU alone are its own"
        return Check("compute", name, "failure", "; ".join(wrong), tuple(evidence), fix)
    return Check("compute", name, "ok", agree, tuple(evidence))
