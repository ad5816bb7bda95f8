"""One job: ``tfopt doctor --job my.train:job``.

Guarantees: the job's module is imported, and its steps are trained, in a process of its own that
is killed at a limit of time; what killed it is told with what it was at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import psutil

from tfopt.doctor.check import Check, Inspection, Subject, within
from tfopt.doctor.host_checks import read_rate
from tfopt.doctor.isolated import ask
from tfopt.measure.machine import read_limits
from tfopt.monitor.nvml import gpu_memories

# Which layers' sizes keep a GPU's tensor cores from their full speed, and what to pad to.
#
# NVIDIA's guide to matrix multiplication: sizes should be multiples of 16 bytes, which is 8
# numbers of float16 or bfloat16, 4 of TF32 and 16 of int8. cuBLAS and cuDNN of the last years
# compute other sizes on tensor cores too, by padding, and slower. Guarantees: the model is only
# read.

_CELLS = ("SimpleRNNCell", "GRUCell", "LSTMCell")


@dataclass(frozen=True)
class Product:
    """What one layer multiplies by: numbers in and out."""

    layer: str
    inputs: int
    outputs: int

    def uneven(self, multiple: int) -> str | None:
        """What to pad to, or None where both sizes are whole multiples."""
        wrong = [
            f"{name} {size}, pad to {-(-size // multiple) * multiple}"
            for name, size in (("inputs", self.inputs), ("outputs", self.outputs))
            if size % multiple
        ]
        return f"{self.layer}: {', '.join(wrong)}" if wrong else None


def products_of(model: Any) -> Iterator[Product]:
    """The layers that tensor cores compute: dense ones, convolutions, cells of recurrent ones."""
    for layer in model._flatten_layers(include_self=False):
        sizes = _sizes(layer)
        if sizes is not None:
            yield Product(layer.path or layer.name, *sizes)


def _sizes(layer: Any) -> tuple[int, int] | None:
    kinds = {kind.__name__ for kind in type(layer).__mro__}
    kernel = getattr(layer, "pointwise_kernel", None)
    kernel = getattr(layer, "kernel", None) if kernel is None else kernel
    if kernel is None or "BaseDepthwiseConv" in kinds or len(kernel.shape) < 2:
        return None
    shape = tuple(int(each) for each in kernel.shape)
    if "EinsumDense" in kinds:
        return _of_equation(layer.equation, shape)
    if "BaseConvTranspose" in kinds:
        return shape[-1], shape[-2]
    if kinds & {"Dense", "BaseConv", "BaseSeparableConv", *_CELLS}:
        return shape[-2], shape[-1]
    return None


def _of_equation(equation: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """The kernel's letters that are summed over, and those that are left."""
    operands, _, output = equation.replace(" ", "").partition("->")
    letters = operands.partition(",")[2]
    left = prod(size for letter, size in zip(letters, shape, strict=True) if letter in output)
    return prod(shape) // left, left


_MIB = 1024**2
_LISTING_S = 20.0
_READING_S = 60.0


def job(subject: Subject) -> Iterable[Check]:
    """All that is looked at in one job; nothing where none is named."""
    if subject.job is None:
        told = "none is named: tfopt doctor --job my_package.train:job looks at one"
        yield Check("job", "job", "not here", told)
        return
    there_mib, of = _memory(subject)
    asked = {
        "job": subject.job,
        "arguments": dict(subject.arguments),
        "chain": None if subject.chain is None else str(subject.chain),
        "memory_mib": there_mib,
        "memory_of": of,
        "read_mib_per_s": None if subject.data is None else _read_rate(subject.data),
    }
    found = ask("job", asked, subject.job_limit_s)
    yield from map(_check, found.answers)
    if found.ended is not None:
        fix = "train it by itself to see more; with SIGKILL, try a smaller batch first"
        told = f"the job's process ended while at: {found.at}"
        yield Check("job", "job", "failure", told, (found.ended,), fix)


def _read_rate(folder: Path) -> float | None:
    try:
        return within(_READING_S, lambda: read_rate(folder)).mib_per_s
    except OSError:  # a TimeoutError too: the disk's own check tells what is wrong
        return None


def _check(answer: Mapping[str, Any]) -> Check:
    return Check(**{**answer, "evidence": tuple(answer["evidence"])})


def _memory(subject: Subject) -> tuple[float, str]:
    """What the step has: the smallest GPU's memory, or the host's, within its container."""
    gpus = within(_LISTING_S, gpu_memories)
    if isinstance(gpus, list) and gpus:
        return min(gpu.total_mib for gpu in gpus), "the GPU"
    free = psutil.virtual_memory().available / _MIB
    limit = read_limits(subject.root).memory_gib
    return (free, "the host") if limit is None else (min(free, limit * 1024), "the container")


JOB_INSPECTIONS = (Inspection("job", "job", job, limit_s=None),)
