"""Estimate on which GPUs a training fits, and what bounds its step, without timing it."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tfopt.errors import require_count
from tfopt.job.job import Job
from tfopt.job.transform import Transform
from tfopt.keras_internals import layers_inside
from tfopt.report.format import table

if TYPE_CHECKING:
    import keras

MEMORY_MARGIN = 1.2  # of processes over ``tfopt.training_memory``'s estimate, in its benchmarks
ASSUMPTION = (
    "Assumed: arithmetic is three times that of the forward pass; weights, gradients, the "
    "optimizer's variables and activations are moved once for each use; both run at the published "
    f"peaks; memory times {MEMORY_MARGIN:g} plus 1 GiB for CUDA. Nothing was measured on a GPU."
)


class Gpu(NamedTuple):
    """A GPU with its published peaks: TFLOPS of dense products by dtype, memory, bandwidth.

    ``float32`` is TF32 from Ampere on; ``memory_mib`` is that of nvidia-smi.
    """

    name: str
    float32: float
    float16: float
    bfloat16: float
    memory_mib: float
    gb_per_s: float


# NVIDIA's data sheets at nvidia.com/en-us/data-center/; V100 as SXM2, A100 as SXM. Those of the L4,
# the H100 and the H200 are halved, to dense products.
GPUS = (
    Gpu("T4", 8.1, 65.0, 8.1, 15360, 320.0),
    Gpu("L4", 60.0, 121.0, 121.0, 23034, 300.0),
    Gpu("V100 16GB", 15.7, 125.0, 15.7, 16384, 900.0),
    Gpu("V100 32GB", 15.7, 125.0, 15.7, 32768, 900.0),
    Gpu("A100 40GB", 156.0, 312.0, 312.0, 40960, 1555.0),
    Gpu("A100 80GB", 156.0, 312.0, 312.0, 81920, 2039.0),
    Gpu("H100 PCIe", 378.0, 756.0, 756.0, 81559, 2000.0),
    Gpu("H100 SXM", 494.5, 989.5, 989.5, 81559, 3350.0),
    Gpu("H200 SXM", 494.5, 989.5, 989.5, 143771, 4800.0),
)


@dataclass(frozen=True)
class HardwareEstimate:
    """The arithmetic, traffic and memory of a training step on one GPU; prints a table of GPUs."""

    name: str
    batch_size: int
    dtype: str
    gflop: float
    moved_gib: float
    needs_mib: float
    note: str = ""

    def fits(self, gpu: Gpu) -> bool:
        """Return whether the step fits in the GPU's memory."""
        return self.needs_mib <= gpu.memory_mib

    def bound_by(self, gpu: Gpu) -> str:
        """Return what takes longer at the published peaks: "arithmetic" or "bandwidth"."""
        arithmetic_ms = self.gflop / float(getattr(gpu, self.dtype))
        moving_ms = self.moved_gib * 1024**3 / (gpu.gb_per_s * 1e6)
        return "arithmetic" if arithmetic_ms > moving_ms else "bandwidth"

    def __str__(self) -> str:
        head = (
            f"{self.name}, a batch of {self.batch_size} in {self.dtype}, on one GPU: "
            f"{self.gflop:,.3g} GFLOP, {self.moved_gib:,.3g} GiB moved, "
            f"{self.needs_mib / 1024:.1f} GiB needed"
        )
        rows = [(gpu.name, "yes" if self.fits(gpu) else "no", self.bound_by(gpu)) for gpu in GPUS]
        lines = [*table(("", "fits", "bound by"), rows), "", *textwrap.wrap(self.note, 80)]
        return "\n".join([*textwrap.wrap(head, 80), "", *lines, *textwrap.wrap(ASSUMPTION, 80)])

    def to_json(self) -> str:
        """Return the estimate as a JSON document, with units in the keys."""
        rows = [
            {"gpu": gpu.name, "fits": self.fits(gpu), "bound_by": self.bound_by(gpu)}
            for gpu in GPUS
        ]
        return json.dumps({**asdict(self), "assumption": ASSUMPTION, "rows": rows}, indent=2) + "\n"


def hardware_estimate(
    job: Job, chain: Transform | None = None, *, batch_size: int | None = None
) -> HardwareEstimate:
    """Estimate on which GPUs a training fits, and whether arithmetic or bandwidth bounds it.

    Published peaks are compared with the arithmetic of the forward pass, by TensorFlow's profiler,
    and the memory of weights, gradients, the optimizer and activations, by
    ``tfopt.training_memory``. Use it to choose what to try, not what to buy.

    Args:
        job: The job to estimate.
        chain: What changes it, such as ``MixedPrecision("mixed_float16")``.
        batch_size: Examples a step; None: the job's.

    Raises:
        UserError: ``batch_size`` is not a count, or the job cannot be built under the chain.

    Example:
        job = tfopt.Job.from_model(model, (x, y))
        print(tfopt.hardware_estimate(job, batch_size=256))
    """
    if batch_size is not None:
        require_count("batch_size", batch_size)
    from tfopt.measure.input_ways import first_batch
    from tfopt.run import prepared, require_job
    from tfopt.train.memory_estimate import training_memory

    require_job(job, "hardware_estimate")
    with prepared(job.with_(callbacks=()), chain) as ready:
        examples = first_batch(ready)
        memory = training_memory(ready.model, examples, batch_size or ready.facts.batch_size)
        forward, note = _forward_operations(ready.model, examples[0], memory.batch_size)
        layers = layers_inside(ready.model)
        halves = {layer.compute_dtype for layer in layers if layer.weights} - {"float32"}
    twice = memory.gradients_mib + memory.optimizer_mib + memory.activations_mib
    # Weights are read forward and backward, and written.
    moved_mib = 3 * memory.parameters_mib + 2 * twice + memory.input_mib
    return HardwareEstimate(
        name=job.name,
        batch_size=memory.batch_size,
        dtype=min(halves, default="float32"),
        gflop=3 * forward / 1e9,
        moved_gib=moved_mib / 1024,
        needs_mib=memory.peak_mib * MEMORY_MARGIN + 1024,
        note=note,
    )


def _forward_operations(model: keras.Model, inputs: Any, size: int) -> tuple[int, str]:
    """Return the operations of a model's forward pass, and a note of those not counted."""
    import keras
    import tensorflow as tf

    from tfopt.export.serving import float_operations

    specs = keras.tree.map_structure(
        lambda leaf: tf.TensorSpec((size, *leaf.shape[1:]), leaf.dtype), inputs
    )
    call = tf.function(lambda x: model(x, training=False), autograph=False)
    return float_operations(call.get_concrete_function(specs))
