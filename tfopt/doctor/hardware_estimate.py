"""Estimate on which GPUs that are not here a training fits, and what its step would be bound by.

Nothing is timed, and every assumption is in the result.
"""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError, first_line, require_count
from tfopt.job.job import Job
from tfopt.report.format import table

if TYPE_CHECKING:
    import keras

RESERVED_MIB = 1024.0
"""CUDA's context, the libraries and what an allocator cannot use: an assumption."""
MEMORY_MARGIN = 1.2
"""How much more than ``tfopt.training_memory``'s estimate processes took in its benchmarks."""
ASSUMPTION = (
    "arithmetic is three times that of the forward pass, for the gradients of weights and of "
    "inputs; weights, gradients, the optimizer's variables and activations are moved once for "
    "each use. Both times are at the published peaks, which no step reaches. Memory times "
    f"{MEMORY_MARGIN:g} plus {RESERVED_MIB / 1024:g} GiB for CUDA. Nothing was measured on a GPU."
)
_GIB = 1024**3


@dataclass(frozen=True)
class Work:
    """What one training step computes, moves and holds on one device.

    Attributes:
        gflop: Floating point operations, in 10^9: three times the forward pass's.
        gib: The least that is read and written.
        peak_mib: The memory that it holds, by ``tfopt.training_memory``.
        note: What is not counted.
    """

    batch_size: int
    dtype: str
    gflop: float
    gib: float
    peak_mib: float
    note: str = ""


def work_of(job: Job) -> Work:
    """Return the work of a job's step as it is, on one device; the step is traced, not run."""
    from tfopt.doctor.job_checks import first_batch
    from tfopt.run import prepared
    from tfopt.train.memory_estimate import training_memory

    with prepared(job.with_(callbacks=())) as ready:
        if ready.facts.replicas > 1:
            raise UserError(
                "The estimate is for one GPU.",
                expected="a job without Distribute, with one replica's part of the batch",
                received=f"{ready.facts.replicas} replicas",
                fix="take Distribute out; the exchange between GPUs is not estimated",
            )
        batch = first_batch(ready)
        held = training_memory(ready.model, batch, ready.facts.batch_size)
        count, note = _forward(ready.model, batch[0], held.batch_size)
    moved_mib = (
        3 * held.parameters_mib  # read forward and backward, and written
        + 2 * (held.gradients_mib + held.optimizer_mib + held.activations_mib)
        + held.input_mib
    )
    return Work(
        batch_size=held.batch_size,
        dtype=_dtype(ready.model),
        gflop=3 * count / 1e9,
        gib=moved_mib / 1024,
        peak_mib=held.peak_mib,
        note=note,
    )


def _dtype(model: keras.Model) -> str:
    """Return the dtype that the layers with most of the weights compute in."""
    weights: Counter[str] = Counter()
    for layer in model._flatten_layers(include_self=False):
        if not layer._layers:  # no container: what it holds comes by itself
            weights[layer.compute_dtype] += layer.count_params()
    return weights.most_common(1)[0][0] if weights else str(model.compute_dtype)


def _forward(model: keras.Model, inputs: Any, size: int) -> tuple[int, str]:
    """Return the operations of a model's forward pass, and what is not counted."""
    import keras
    import tensorflow as tf

    from tfopt.export.operations import float_operations

    specs = keras.tree.map_structure(
        lambda leaf: tf.TensorSpec((size, *leaf.shape[1:]), leaf.dtype), inputs
    )
    call = tf.function(lambda given: model(given, training=False), autograph=False)
    try:
        return float_operations(call.get_concrete_function(specs))
    # Whatever the user's own layers raise when traced.
    except Exception as error:
        raise UserError(
            "What a step computes cannot be counted.",
            expected="a model that can be traced",
            received=f"{type(error).__name__}: {first_line(error)}",
        ) from error


@dataclass(frozen=True)
class Gpu:
    """A GPU with its published peaks.

    Peaks are of dense products: NVIDIA's data sheets of Ampere and later print twice as much, for
    sparse ones.

    Attributes:
        products_tflops: Of matrix products by dtype; "float32" is what TensorFlow computes them in
            by default: TF32 on tensor cores, from Ampere on. A dtype that is not there runs at
            no gain (bfloat16 before Ampere).
        memory_mib: What nvidia-smi lists (memory.total, with ECC), read in listings that people
            published up to 2026: the data sheets' round gigabytes are neither 10^9 nor 2^30 bytes
            throughout. Older drivers list some hundreds of MiB less.
        gb_per_s: The bandwidth of the GPU's own memory.
    """

    name: str
    products_tflops: Mapping[str, float]
    memory_mib: float
    gb_per_s: float
    source: str


def _gpu(
    name: str, float32: float, half: float, memory: float, rate: float, bfloat16: bool = True
) -> Gpu:
    peaks = {"float32": float32, "float16": half} | ({"bfloat16": half} if bfloat16 else {})
    source = f"NVIDIA {name.partition(' ')[0]} data sheet"
    return Gpu(name, MappingProxyType(peaks), memory, rate, source)


# The data sheets at nvidia.com/en-us/data-center/; V100 as SXM2, A100 as SXM. Those of the L4, the
# H100 and the H200 are halved, to dense products.
GPUS: tuple[Gpu, ...] = (
    _gpu("T4", 8.1, 65.0, 15360, 320.0, bfloat16=False),
    _gpu("L4", 60.0, 121.0, 23034, 300.0),
    _gpu("V100 16GB", 15.7, 125.0, 16384, 900.0, bfloat16=False),
    _gpu("V100 32GB", 15.7, 125.0, 32768, 900.0, bfloat16=False),
    _gpu("A100 40GB", 156.0, 312.0, 40960, 1555.0),
    _gpu("A100 80GB", 156.0, 312.0, 81920, 2039.0),
    _gpu("H100 PCIe", 378.0, 756.0, 81559, 2000.0),
    _gpu("H100 SXM", 494.5, 989.5, 81559, 3350.0),
    _gpu("H200 SXM", 494.5, 989.5, 143771, 4800.0),
)


def gpu_named(name: str) -> Gpu:
    """Return a GPU by its name, however that is written: "a100-80gb" is "A100 80GB"."""
    for gpu in GPUS:
        if _plain(gpu.name) == _plain(name):
            return gpu
    raise UserError(
        "There are no published figures of that GPU here.",
        expected=", ".join(gpu.name for gpu in GPUS),
        received=repr(name),
    )


def _plain(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum())


@dataclass(frozen=True)
class OnGpu:
    """The estimate for one GPU.

    Attributes:
        arithmetic_ms: The time of a step's arithmetic at the published peak.
        traffic_ms: The time of what it moves, at the published bandwidth.
        needs_mib: The memory of the step with the margin and what CUDA takes.
    """

    gpu: Gpu
    arithmetic_ms: float
    traffic_ms: float
    needs_mib: float
    note: str = ""

    @property
    def fits(self) -> bool:
        """Return whether the step fits in the GPU's memory."""
        return self.needs_mib <= self.gpu.memory_mib

    @property
    def bound_by(self) -> str:
        """Return which of the two takes longer: "arithmetic" or "bandwidth"."""
        return "arithmetic" if self.arithmetic_ms > self.traffic_ms else "bandwidth"


@dataclass(frozen=True)
class HardwareEstimate:
    """The estimates for all GPUs, and the work that they are for; printed, a table."""

    name: str
    work: Work
    rows: tuple[OnGpu, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def hardware_estimate(
    job: Job | keras.Model,
    batch: Any = None,
    *,
    batch_size: int | None = None,
    gpus: Sequence[str] = (),
) -> HardwareEstimate:
    """Estimate on which GPUs a training fits, and whether arithmetic or bandwidth bounds it.

    Set against published peaks is the arithmetic of the forward pass, as TensorFlow's profiler
    counts it, and what ``tfopt.training_memory`` says of weights, gradients, the optimizer and
    activations. Take it to choose what to try, not what to buy.

    Args:
        job: A Job, or a compiled Keras model, which is not changed. For half precision give
            ``MixedPrecision("mixed_float16").apply(job)``, or of a model
            ``tfopt.mixed_precision(model, "mixed_float16")``.
        batch: With a model: what ``fit`` gives to a step, ``(x, y)``, arrays.
        batch_size: Another number of examples a step.
        gpus: Names such as "A100 80GB"; none: all whose figures are known.

    Example:
        print(tfopt.hardware_estimate(model, (x, y), batch_size=256, gpus=["A100 40GB"]))
    """
    chosen = [gpu_named(name) for name in gpus] or list(GPUS)
    if batch_size is not None:
        require_count("hardware_estimate(batch_size)", batch_size)
    job = _job(job, batch, batch_size)
    work = work_of(job)
    return HardwareEstimate(job.name, work, tuple(on_gpu(gpu, work) for gpu in chosen))


def _job(given: Any, batch: Any, batch_size: int | None) -> Job:
    if isinstance(given, Job):
        if batch is not None:
            raise UserError("A job has its own data.", expected="no batch", received="a batch")
        return given if batch_size is None else given.with_(batch_size=batch_size)
    if not isinstance(batch, tuple):
        raise UserError(
            "A model alone does not say its batch.",
            expected="hardware_estimate(model, (x, y)), or a Job",
            received=type(batch).__name__,
        )
    import keras

    size = batch_size or len(keras.tree.flatten(batch)[0])
    return Job.from_model(given, batch, batch_size=size)


def on_gpu(gpu: Gpu, work: Work) -> OnGpu:
    """Return the estimate for one GPU."""
    dtype = work.dtype if work.dtype in gpu.products_tflops else "float32"
    return OnGpu(
        gpu=gpu,
        arithmetic_ms=work.gflop / gpu.products_tflops[dtype],
        traffic_ms=work.gib * _GIB / (gpu.gb_per_s * 1e6),
        needs_mib=work.peak_mib * MEMORY_MARGIN + RESERVED_MIB,
        note="" if dtype == work.dtype else f"no {work.dtype} in hardware: at float32's pace",
    )


def _lines(estimate: HardwareEstimate) -> Iterator[str]:
    work = estimate.work
    yield f"{estimate.name}, a batch of {work.batch_size}, on one GPU"
    told = f"{work.dtype}: {_count(work.gflop)} GFLOP, {_count(work.gib)} GiB moved"
    yield f"  {told}, {work.peak_mib:,.0f} MiB held"
    yield ""
    head = ("", "needs GiB", "fits", "arithmetic ms", "traffic ms", "bound by")
    yield from table(head, map(_row, estimate.rows))
    yield ""
    notes = [f"{row.gpu.name}: {row.note}" for row in estimate.rows if row.note]
    for note in (*notes, work.note, f"Assumed: {ASSUMPTION}"):
        yield from textwrap.wrap(note, 80, break_on_hyphens=False)


def _row(row: OnGpu) -> tuple[str, ...]:
    return (
        row.gpu.name,
        f"{row.needs_mib / 1024:.1f} of {row.gpu.memory_mib / 1024:.1f}",
        "yes" if row.fits else "no",
        _count(row.arithmetic_ms),
        _count(row.traffic_ms),
        row.bound_by,
    )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_json(estimate: HardwareEstimate) -> str:
    """Return the estimate as a JSON document; units are in the keys."""
    rows = [
        {"gpu": row.gpu.name, "source": row.gpu.source, "has_mib": row.gpu.memory_mib}
        | {name: value for name, value in vars(row).items() if name != "gpu"}
        | {"fits": row.fits, "bound_by": row.bound_by}
        for row in estimate.rows
    ]
    content = {"version": 3, "name": estimate.name, "assumption": ASSUMPTION}
    return json.dumps({**content, "work": vars(estimate.work), "rows": rows}, indent=2) + "\n"
