"""Estimate memory and step time on GPUs that are not here: a roofline over published peaks.

Every assumption is in the result. The estimate was checked on one H200 alone.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError, require_count
from tfopt.job.job import Job
from tfopt.report.format import table

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Work:
    """What one training step computes, moves and holds on one device.

    Attributes:
        product_gflop: Matrix products and convolutions, in 10^9 operations.
        other_gflop: All other operations.
        gib: What operations read and write, each by itself.
        peak_mib: The memory that it holds, by ``tfopt.training_memory``.
        note: What the counts leave out.
    """

    batch_size: int
    dtype: str
    product_gflop: float
    other_gflop: float
    gib: float
    peak_mib: float
    note: str = ""

    @property
    def least_gib(self) -> float:
        """Return the least memory traffic: all that is held is written and read once."""
        return min(2 * self.peak_mib / 1024, self.gib)


def work_of(job: Job) -> Work:
    """Return the work of a job's step as it is, on one device; the step is traced, not run."""
    from tfopt.data.fit_data import Arrays, read_source
    from tfopt.doctor.job_checks import first_batch
    from tfopt.measure.step_cost import step_cost
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
        cost = step_cost(ready)
        if isinstance(cost, str):
            raise UserError(
                "What a step computes cannot be counted.",
                expected="a step that tfopt can trace and count",
                received=cost,
                fix="measure it where it runs: tfopt bench",
            )
        held = training_memory(ready.model, first_batch(ready), ready.facts.batch_size)
        source = read_source(ready.train_input)
    # The step that was counted has fewer examples where there are fewer.
    size = held.batch_size
    counted = min(source.examples, size) if isinstance(source, Arrays) else size
    times = size / counted
    notes = [cost.note]
    if times != 1:
        notes.append(f"counted for {counted} examples, all that there are, times {times:g}")
    return Work(
        batch_size=size,
        dtype=cost.dtype,
        product_gflop=times * cost.product_gflop,
        other_gflop=times * max(cost.gflop_per_step - cost.product_gflop, 0.0),
        gib=times * cost.gib_per_step,
        peak_mib=held.peak_mib,
        note="; ".join(filter(None, notes)),
    )


@dataclass(frozen=True)
class Gpu:
    """A GPU with its published peaks.

    Peaks are of dense products: NVIDIA's data sheets of Ampere and later print twice as much, for
    sparse ones.

    Attributes:
        products_tflops: Of matrix products by dtype; "float32" is what TensorFlow computes them in
            by default: TF32 on tensor cores, from Ampere on. A dtype that is not there runs at
            no gain (bfloat16 before Ampere).
        other_tflops: Of everything else, in float32 outside of tensor cores.
        memory_mib: What nvidia-smi lists (memory.total, with ECC), read in listings that people
            published up to 2026: the data sheets' round gigabytes are neither 10^9 nor 2^30 bytes
            throughout. Older drivers list some hundreds of MiB less.
        gb_per_s: The bandwidth of the GPU's own memory.
    """

    name: str
    products_tflops: Mapping[str, float]
    other_tflops: float
    memory_mib: float
    gb_per_s: float
    source: str


def _gpu(name: str, float32: float, half: float, other: float, memory: float, rate: float) -> Gpu:
    peaks = {"float32": float32, "float16": half}
    if float32 > other:  # TF32, and with it bfloat16, came with Ampere
        peaks["bfloat16"] = half
    source = f"NVIDIA {name.partition(' ')[0]} data sheet"
    return Gpu(name, MappingProxyType(peaks), other, memory, rate, source)


# The data sheets at nvidia.com/en-us/data-center/; V100 as SXM2, A100 as SXM. Those of the L4, the
# H100 and the H200 are halved, to dense products.
GPUS: tuple[Gpu, ...] = (
    _gpu("T4", 8.1, 65.0, 8.1, 15360, 320.0),
    _gpu("L4", 60.0, 121.0, 30.3, 23034, 300.0),
    _gpu("V100 16GB", 15.7, 125.0, 15.7, 16384, 900.0),
    _gpu("V100 32GB", 15.7, 125.0, 15.7, 32768, 900.0),
    _gpu("A100 40GB", 156.0, 312.0, 19.5, 40960, 1555.0),
    _gpu("A100 80GB", 156.0, 312.0, 19.5, 81920, 2039.0),
    _gpu("H100 PCIe", 378.0, 756.0, 51.0, 81559, 2000.0),
    _gpu("H100 SXM", 494.5, 989.5, 67.0, 81559, 3350.0),
    _gpu("H200 SXM", 494.5, 989.5, 67.0, 143771, 4800.0),
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


# Of the published peak. The best is what large single products reach on an A100 and a V100
# (74 to 76 %), the worst what a layer of GPT-2 trained at there (17 to 30 %): figures of
# github.com/fanghostt/transformers-benchmarks, read 2026-11. Of memory bandwidth the worst is what
# steps without XLA reached on an H200 (0.37 to 0.41: ResNet-50, a Transformer of BERT-base's size;
# benchmarks/results/2026-11-26-gpu_day-*.json); the best is an assumption without a source.
COMPUTE_SHARE = (0.20, 0.75)
MEMORY_SHARE = (0.35, 0.90)
# CUDA's context, the libraries and what an allocator cannot use: an assumption too.
RESERVED_MIB = 1024.0
# How much more than tfopt.training_memory's estimate processes took in its benchmarks.
MEMORY_MARGIN = 1.2
# Some hundred kernels at some microseconds each: below this the host's launches count.
LAUNCH_BOUND_MS = 1.0

_BEST = f"{COMPUTE_SHARE[1]:.0%} of the compute and {MEMORY_SHARE[1]:.0%} of the bandwidth"
_WORST = f"{COMPUTE_SHARE[0]:.0%} and {MEMORY_SHARE[0]:.0%}"
ASSUMPTION = (
    "a roofline over published peaks of dense products. Ideal: all of the peaks, and what is held "
    f"is written and read once. Range: from {_BEST} with everything fused, to {_WORST} with "
    f"nothing fused. Memory times {MEMORY_MARGIN:g} plus {RESERVED_MIB / 1024:g} GiB for CUDA. "
    "Input, kernel launches and other GPUs are not counted. Checked on one H200 alone."
)


@dataclass(frozen=True)
class OnGpu:
    """The estimate for one GPU.

    Attributes:
        ideal_ms: The time with all of the published peaks, and all fused that can be.
        range_ms: The times from the best to the worst that is assumed.
        bound_by: "compute" or "memory"; "fusion": memory while each operation moves its own,
            compute once they are fused (``jit_compile=True``).
        needs_mib: The memory of the step with the margin and what CUDA takes.
        has_mib: All the memory of the GPU.
    """

    gpu: Gpu
    ideal_ms: float
    range_ms: tuple[float, float]
    bound_by: str
    needs_mib: float
    has_mib: float
    fits: bool
    note: str = ""


@dataclass(frozen=True)
class HardwareEstimate:
    """The estimates for all GPUs, and the work that they are for."""

    name: str
    work: Work
    rows: tuple[OnGpu, ...]

    def __str__(self) -> str:
        """Return a table, and what is assumed; 80 columns wide."""
        return "\n".join(_lines(self))


def hardware_estimate(
    job: Job | keras.Model,
    batch: Any = None,
    *,
    batch_size: int | None = None,
    gpus: Sequence[str] = (),
) -> HardwareEstimate:
    """Estimate memory and step time of a training on GPUs that are not here.

    Counted is what one step computes, moves and holds (``tfopt.training_memory``); times are a
    roofline over published peaks, with a range for how much of them is reached. It was checked on
    one H200 alone: take it to choose what to try, not what to buy.

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
    dtype = work.dtype
    notes = []
    if dtype not in gpu.products_tflops:
        notes.append(f"no {dtype} in hardware: at the pace of float32")
        dtype = "float32"
    compute_ms = (
        work.product_gflop / gpu.products_tflops[dtype] + work.other_gflop / gpu.other_tflops
    )
    ms_per_gib = 1024**3 / (gpu.gb_per_s * 1e6)
    fused_ms, memory_ms = work.least_gib * ms_per_gib, work.gib * ms_per_gib
    ideal_ms = max(compute_ms, fused_ms)
    range_ms = (
        max(compute_ms / COMPUTE_SHARE[1], fused_ms / MEMORY_SHARE[1]),
        max(compute_ms / COMPUTE_SHARE[0], memory_ms / MEMORY_SHARE[0]),
    )
    if ideal_ms < LAUNCH_BOUND_MS:
        notes.append("so short that launching its kernels takes longer: a larger batch, or XLA")
    bound_by = "memory"
    if compute_ms > fused_ms:
        bound_by = "compute" if compute_ms >= memory_ms else "fusion"
    needs, has = work.peak_mib * MEMORY_MARGIN + RESERVED_MIB, gpu.memory_mib
    return OnGpu(
        gpu=gpu,
        ideal_ms=ideal_ms,
        range_ms=range_ms,
        bound_by=bound_by,
        needs_mib=needs,
        has_mib=has,
        fits=needs <= has,
        note="; ".join(notes),
    )


# The keys stay as they are within a version; units are in their names.
VERSION = 2


def _lines(estimate: HardwareEstimate) -> Iterator[str]:
    yield f"{estimate.name}, a batch of {estimate.work.batch_size}, on one GPU"
    yield from _wrapped(_work_lines(estimate.work), "  ")
    yield ""
    head = ("", "ideal ms", "range ms", "bound by", "needs GiB", "fits")
    yield from table(head, map(_row, estimate.rows))
    notes = _notes(estimate.rows)
    if notes:
        yield ""
        for each in notes:
            yield from _wrapped(each)
    if any(row.bound_by == "fusion" for row in estimate.rows):
        fusion = "memory while each operation moves its own, compute once XLA fuses them"
        yield from ("", *_wrapped(f"Bound by fusion: {fusion} (tfopt.execution(jit_compile=True))"))
    if estimate.work.note:
        yield ""
        yield from _wrapped(f"Counted: {estimate.work.note}")
    yield ""
    yield from _wrapped(f"Assumed: {ASSUMPTION}")


def _notes(rows: Sequence[OnGpu]) -> list[str]:
    """Return each note once, with the rows that it is about."""
    by_note: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            by_note.setdefault(row.note, []).append(row.gpu.name)
    return [
        f"{'On all of them' if len(names) == len(rows) else ', '.join(names)}: {note}"
        for note, names in by_note.items()
    ]


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, 80, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _work_lines(work: Work) -> str:
    return (
        f"{work.dtype}: {_count(work.product_gflop)} GFLOP of products and "
        f"{_count(work.other_gflop)} of the rest; {_count(work.least_gib)} GiB moved, fused, to "
        f"{_count(work.gib)} GiB, each operation its own; {work.peak_mib:,.0f} MiB held"
    )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _row(row: OnGpu) -> tuple[str, ...]:
    best, slow = row.range_ms
    return (
        row.gpu.name,
        _ms(row.ideal_ms),
        f"{_ms(best)}-{_ms(slow)}",
        row.bound_by,
        f"{row.needs_mib / 1024:.1f} of {row.has_mib / 1024:.1f}",
        "yes" if row.fits else "no",
    )


def _ms(value: float) -> str:
    return _count(value).replace(",", "")


def as_json(estimate: HardwareEstimate) -> str:
    """Return the estimate as a JSON document."""
    content = {
        "version": VERSION,
        "name": estimate.name,
        "assumption": ASSUMPTION,
        "work": vars(estimate.work),
        "rows": [
            {"gpu": row.gpu.name, "source": row.gpu.source}
            | {name: value for name, value in vars(row).items() if name != "gpu"}
            for row in estimate.rows
        ],
    }
    return json.dumps(content, indent=2) + "\n"
