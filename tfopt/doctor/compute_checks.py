"""Run small computations on the CPU and on each GPU, in other processes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tfopt.doctor.check import Check, Subject
from tfopt.doctor.gpu_checks import built_for, tensorflow_build
from tfopt.doctor.trials import TRIALS
from tfopt.errors import first_line
from tfopt.monitor.nvml import DeviceFacts, device_facts, driver_version, newest_cuda, why_no_gpu
from tfopt.subprocesses import ask

_LIMIT_S = 180.0
_ON_CPU = ("float32", "float16", "bfloat16", "XLA")
_FROM_AMPERE_ON = ("tensorfloat32", "bfloat16", "fused attention")
_CPU_FIX = "try another TensorFlow version; SIGILL at the import means a CPU without AVX"


def compute(asked: Mapping[str, Any]) -> Iterator[str | Mapping[str, Any]]:
    """Yield stages, and a result for each trial; runs in another process."""
    yield "importing TensorFlow"
    import tensorflow as tf

    yield f"looking for a {asked['device']}"
    if not tf.config.list_physical_devices(asked["device"]):
        yield {"what": "no device"}
        return
    for what in asked["trials"]:
        yield what
        # As in trainings, but not where float32 is compared.
        tf.config.experimental.enable_tensor_float_32_execution(what not in ("float32", "XLA"))
        begins = time.monotonic()
        try:
            error = TRIALS[what].error()
        except Exception as cause:  # the next trial may work
            yield {"what": what, "failed": f"{type(cause).__name__}: {first_line(cause)}"}
        else:
            yield {"what": what, "error": error, "seconds": time.monotonic() - begins}


def on_cpu(subject: Subject) -> Iterable[Check]:
    """Check the CPU, with all GPUs hidden."""
    answers = tried("CPU", _ON_CPU, {"CUDA_VISIBLE_DEVICES": "-1"})
    yield from judge("CPU", answers, fix=_CPU_FIX)


def on_gpus(subject: Subject) -> Iterable[Check]:
    """Check each visible GPU in a process that sees only this one."""
    facts = device_facts()
    if not facts:
        yield Check("compute", "GPU computation", "not here", why_no_gpu())
        return
    for number, gpu in enumerate(facts):
        if gpu.lost:
            text = f"GPU {number} is lost ({gpu.lost})"
            yield Check("compute", "GPU computation", "not here", text)
            continue
        older = (gpu.capability or (0, 0)) < (8, 0)
        trials = [trial for trial in TRIALS if not older or trial not in _FROM_AMPERE_ON]
        # With growth, since other processes may use the GPU.
        hidden = {"CUDA_VISIBLE_DEVICES": gpu.uuid, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
        answers = tried("GPU", trials, hidden)
        if any(answer["what"] == "no device" for answer in answers):
            yield _unseen(number, gpu)
        else:
            yield from judge(f"GPU {number} ({gpu.name})", answers)


def tried(
    device: str, trials: Sequence[str], environment: Mapping[str, str]
) -> list[Mapping[str, Any]]:
    """Return a result for each trial; one that ends its process is followed by another process."""
    answers: list[Mapping[str, Any]] = []
    pending = list(trials)
    while pending:
        outcome = ask(compute, {"device": device, "trials": pending}, _LIMIT_S, environment)
        answers += outcome.answers
        if outcome.ended is None:
            break
        answers.append({"what": outcome.at, "failed": outcome.ended})
        pending = pending[pending.index(outcome.at) + 1 :] if outcome.at in pending else []
    return answers


def judge(where: str, answers: Iterable[Mapping[str, Any]], fix: str = "") -> Iterator[Check]:
    """Yield a failure for each wrong trial, with its fix, and one check of the others."""
    name = f"{where} computation"
    correct: dict[str, str] = {}
    for answer in answers:
        what = answer["what"]
        packages = TRIALS[what].packages if what in TRIALS else "'tfopt[gpu]'"
        remedy = fix or f"pip install -U {packages}"
        if "failed" in answer:
            text = f"{what} fails"
            yield Check("compute", name, "failure", text, (answer["failed"],), remedy)
            continue
        allowed = TRIALS[what].allowed
        figures = f"{what}: relative error {answer['error']:.1e}, {allowed:g} allowed"
        figures += f", in {answer['seconds']:.1f} s"
        if answer["error"] <= allowed:
            correct[what] = figures
        else:  # also NaN
            remedy += "; if only one GPU of several is wrong, that GPU is faulty" if not fix else ""
            yield Check("compute", name, "failure", f"{what} is wrong", (figures,), remedy)
    if correct:
        text = f"{', '.join(correct)}: as computed in float64"
        yield Check("compute", name, "ok", text, tuple(correct.values()))


def _unseen(number: int, gpu: DeviceFacts) -> Check:
    """Return the failure of a GPU that the driver lists and TensorFlow does not."""
    build = tensorflow_build()
    capability = ".".join(map(str, gpu.capability or ())) or "unknown"
    programs = ", ".join(map(str, build.get("cuda_compute_capabilities", ())))
    evidence = (
        f"driver {driver_version()}, CUDA up to {newest_cuda()}; compute capability {capability}",
        f"{built_for(build)} and {programs}" if programs else built_for(build),
    )
    text = f"the driver lists GPU {number} ({gpu.name}), and TensorFlow does not see it"
    fix = (
        "pip install 'tensorflow[and-cuda]'; or use a newer driver or GPU, if it is older than "
        "those for which TensorFlow is built"
    )
    return Check("compute", "GPU computation", "failure", text, evidence, fix)
