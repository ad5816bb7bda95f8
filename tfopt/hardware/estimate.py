"""Memory and step time on GPUs that are not here: a roofline over published peaks.

Guarantees: every assumption is in the result. It is an estimate that has never been checked on
hardware: no measurement on any of these GPUs is part of tfopt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError
from tfopt.hardware.peaks import GPUS, Gpu, gpu_named
from tfopt.hardware.work import Work, less_memory, work_of
from tfopt.job import Job, require_count

if TYPE_CHECKING:
    import keras

# Of the published peak. The best is what large single products reach on an A100 and a V100
# (74 to 76 %), the worst what a layer of GPT-2 trained at there (17 to 30 %): figures of
# github.com/fanghostt/transformers-benchmarks, read 2026-11. Of memory bandwidth the range is an
# assumption without a source.
COMPUTE_SHARE = (0.20, 0.75)
MEMORY_SHARE = (0.50, 0.90)
# CUDA's context, the libraries and what an allocator cannot use: an assumption too.
RESERVED_MIB = 1024.0
# How much more than tfopt.training_memory tells processes took in its benchmarks.
MEMORY_MARGIN = 1.2
# Some hundred kernels at some microseconds each: below this the host's launches count.
LAUNCH_BOUND_MS = 1.0

_BEST = f"{COMPUTE_SHARE[1]:.0%} of the compute and {MEMORY_SHARE[1]:.0%} of the bandwidth"
_WORST = f"{COMPUTE_SHARE[0]:.0%} and {MEMORY_SHARE[0]:.0%}"
ASSUMPTION = (
    "a roofline over published peaks of dense products. Ideal: all of the peaks, and what is held "
    f"is written and read once. Range: from {_BEST} with everything fused, to {_WORST} with "
    f"nothing fused. Memory times {MEMORY_MARGIN:g} plus {RESERVED_MIB / 1024:g} GiB for CUDA. "
    "Input, kernel launches and other GPUs are not counted. Never checked on hardware."
)


@dataclass(frozen=True)
class OnGpu:
    """One GPU in one precision.

    Attributes:
        precision: "as it is", or the policy for ``tfopt.mixed_precision``.
        ideal_ms: With all of the published peaks, and all fused that can be.
        range_ms: From the best to the worst that is assumed.
        bound_by: "compute" or "memory"; "fusion": memory while each operation moves its own,
            compute once they are fused (``jit_compile=True``).
        needs_mib: With the margin and what CUDA takes.
        has_mib: All that the GPU has.
        fits: Whether the first is within the second.
        largest_batch: The most examples of a step that fit; 0 where not even one does.
        to_fit: What would make the batch fit, in the order in which to try.
        note: What is to be known besides.
    """

    gpu: Gpu
    precision: str
    ideal_ms: float
    range_ms: tuple[float, float]
    bound_by: str
    needs_mib: float
    has_mib: float
    fits: bool
    largest_batch: int
    to_fit: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class HardwareEstimate:
    """All GPUs, with the work that they were estimated for."""

    name: str
    as_it_is: Work
    half: Work | None
    rows: tuple[OnGpu, ...]
    assumption: str = ASSUMPTION

    def __str__(self) -> str:
        from tfopt.hardware.text import as_text

        return as_text(self)


def hardware_estimate(
    job: Job | keras.Model,
    batch: Any = None,
    *,
    batch_size: int | None = None,
    gpus: Sequence[str] = (),
) -> HardwareEstimate:
    """Estimates memory and step time of a training on GPUs that are not here.

    Counted is what one step computes, moves and holds (``tfopt.training_memory``); times are a
    roofline over published peaks, with a range for how much of them is reached. It has never been
    checked on hardware: take it to choose what to try, not what to buy. Under ``remat`` and
    ``accumulate`` processes took up to 1.5 and 2.2 times what ``training_memory`` told in its
    benchmarks: what is named to make a batch fit is where to begin.

    Args:
        job: A Job, or a compiled Keras model, which is not changed.
        batch: With a model: what ``fit`` gives to a step, ``(x, y)``, arrays.
        batch_size: Another number of examples a step.
        gpus: Names such as "A100 80GB"; none: all that figures are known of.
    """
    chosen = [gpu_named(name) for name in gpus] or list(GPUS)
    if batch_size is not None:
        require_count("hardware_estimate(batch_size)", batch_size)
    job = _job(job, batch, batch_size)
    as_it_is = work_of(job)
    half = _half(job) if as_it_is.dtype == "float32" else None
    rows = [row for gpu in chosen for row in _rows(gpu, as_it_is, half)]
    if not all(row.fits for row in rows):
        lower = less_memory(job)
        rows = [_with_advice(row, as_it_is, half, lower) for row in rows]
    return HardwareEstimate(job.name, as_it_is, half, tuple(rows))


def _job(given: Any, batch: Any, batch_size: int | None) -> Job:
    if isinstance(given, Job):
        if batch is not None:
            raise UserError("A job has its own data.", expected="no batch", received="a batch")
        return given if batch_size is None else given.with_(batch_size=batch_size)
    if not isinstance(batch, tuple):
        raise UserError(
            "A model alone does not tell its batch.",
            expected="hardware_estimate(model, (x, y)), or a Job",
            received=type(batch).__name__,
        )
    import keras

    size = batch_size or len(keras.tree.flatten(batch)[0])
    return Job.from_model(given, batch, batch_size=size)


def _half(job: Job) -> Work | None:
    """The same in half precision; None where the job has a precision, or cannot change."""
    from tfopt.transforms.precision import MixedPrecision

    if any(isinstance(part, MixedPrecision) for part in job.applied):
        return None
    try:
        work = work_of(MixedPrecision("mixed_bfloat16").apply(job))
    except UserError:
        return None
    return work if work.dtype == "bfloat16" else None


def _rows(gpu: Gpu, as_it_is: Work, half: Work | None) -> list[OnGpu]:
    rows = [on_gpu(gpu, as_it_is, "as it is")]
    if half is not None:
        policy = "mixed_bfloat16" if "bfloat16" in gpu.products_tflops else "mixed_float16"
        rows.append(on_gpu(gpu, half, policy))
    return rows


def on_gpu(gpu: Gpu, work: Work, precision: str) -> OnGpu:
    """The roofline of one GPU."""
    dtype = work.dtype
    if precision == "mixed_float16":
        dtype = "float16"  # as wide as the bfloat16 that was counted
    note = ""
    if dtype not in gpu.products_tflops:
        note = f"no {dtype} in hardware: at the pace of float32"
        dtype = "float32"
    compute_ms = (
        work.product_gflop / gpu.products_tflops[dtype] + work.other_gflop / gpu.other_tflops
    )
    fused_ms, memory_ms = (_moved_ms(gib, gpu) for gib in (work.least_gib, work.gib))
    ideal_ms = max(compute_ms, fused_ms)
    range_ms = (
        max(compute_ms / COMPUTE_SHARE[1], fused_ms / MEMORY_SHARE[1]),
        max(compute_ms / COMPUTE_SHARE[0], memory_ms / MEMORY_SHARE[0]),
    )
    if ideal_ms < LAUNCH_BOUND_MS:
        told = "so short that launching its kernels takes longer: a larger batch, or XLA"
        note = f"{note}; {told}" if note else told
    needs, has = _needs(work.peak_mib), gpu.memory_mib
    return OnGpu(
        gpu=gpu,
        precision=precision,
        ideal_ms=ideal_ms,
        range_ms=range_ms,
        bound_by=_bound_by(compute_ms, fused_ms, memory_ms),
        needs_mib=needs,
        has_mib=has,
        fits=needs <= has,
        largest_batch=_largest(work, has),
        note=note,
    )


def _moved_ms(gib: float, gpu: Gpu) -> float:
    return gib * 1024**3 / (gpu.gb_per_s * 1e9) * 1000


def _bound_by(compute_ms: float, fused_ms: float, memory_ms: float) -> str:
    if compute_ms >= memory_ms:
        return "compute"
    return "fusion" if compute_ms > fused_ms else "memory"


def _needs(peak_mib: float) -> float:
    return peak_mib * MEMORY_MARGIN + RESERVED_MIB


def _largest(work: Work, has_mib: float) -> int:
    room = (has_mib - RESERVED_MIB) / MEMORY_MARGIN - work.fixed_mib
    if work.by_example_mib <= 0:
        return work.batch_size if room >= 0 else 0
    return max(int(room / work.by_example_mib), 0)


def _with_advice(row: OnGpu, as_it_is: Work, half: Work | None, lower: float | None) -> OnGpu:
    """What would make the batch fit, each by its own estimate."""
    if row.fits:
        return row
    plain = row.precision == "as it is"
    told = []
    if plain and half is not None and _needs(half.peak_mib) <= row.has_mib:
        told.append("mixed precision")
    if plain and lower is not None and _needs(lower) <= row.has_mib:
        told.append("tfopt.remat")
    if row.largest_batch:
        steps = -(-as_it_is.batch_size // row.largest_batch)
        told.append(f"tfopt.accumulate(steps={steps})")
        told.append(f"a batch of {row.largest_batch}")
    else:
        told.append("not even one example: a larger GPU, a smaller model or another optimizer")
    return replace(row, to_fit=tuple(told))
