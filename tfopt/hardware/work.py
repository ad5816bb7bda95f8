"""What one training step computes, moves and holds, as it is and in half precision.

Guarantees: steps are traced, not run; the model that is given is not changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError
from tfopt.job import Job

if TYPE_CHECKING:
    from tfopt.bench.cost import StepCost
    from tfopt.memory_estimate.estimate import TrainingMemory
    from tfopt.runner import Prepared


@dataclass(frozen=True)
class Work:
    """One step on one device.

    Attributes:
        product_gflop: Matrix products and convolutions, in 10^9 operations.
        other_gflop: All other operations.
        gib: Bytes that operations read and write, each its own.
        fixed_mib: Memory that does not grow with the batch: weights, their gradients, optimizer.
        by_example_mib: What each example adds: itself and its activations.
        note: What the counts leave out.
    """

    batch_size: int
    dtype: str
    product_gflop: float
    other_gflop: float
    gib: float
    fixed_mib: float
    by_example_mib: float
    note: str = ""

    @property
    def peak_mib(self) -> float:
        """The memory of a step of the whole batch."""
        return self.fixed_mib + self.by_example_mib * self.batch_size

    @property
    def least_gib(self) -> float:
        """What is moved if all was fused that can be: what is held is written and read once."""
        return min(2 * self.peak_mib / 1024, self.gib)


def work_of(job: Job) -> Work:
    """The step of a job as it is, on one device."""
    from tfopt.bench.cost import step_cost
    from tfopt.runner import prepared

    with prepared(job.with_(callbacks=())) as ready:
        _require_one_device(ready)
        cost = step_cost(ready)
        if isinstance(cost, str):
            raise UserError(
                "What a step computes cannot be told.",
                expected="a step that tfopt can trace and count",
                received=cost,
                fix="measure it where it runs: tfopt bench",
            )
        whole, half = _memory(ready)
        counted = _counted(ready, whole.batch_size)
    return _work(cost, whole, half, counted)


def less_memory(job: Job) -> float | None:
    """``peak_mib`` under ``tfopt.remat``; None where that cannot be."""
    from tfopt.runner import prepared
    from tfopt.transforms.remat import Remat

    try:
        with prepared(Remat().apply(job.with_(callbacks=()))) as ready:
            return _memory(ready)[0].peak_mib
    except UserError:
        return None


def _counted(ready: Prepared, batch_size: int) -> int:
    """Examples in the step that was counted: those that there are, where they are fewer."""
    from tfopt.data.sources import Arrays, read_source

    source = read_source(ready.train_input)
    return min(source.examples, batch_size) if isinstance(source, Arrays) else batch_size


def _work(cost: StepCost, whole: TrainingMemory, half: TrainingMemory, counted: int) -> Work:
    """The line through the memory of the batch and of half of it."""
    times = whole.batch_size / counted
    scaled = "" if times == 1 else f"counted for {counted} examples, all that there are, times "
    scaled += "" if times == 1 else f"{times:g}"
    examples = whole.batch_size - half.batch_size
    each = max((whole.peak_mib - half.peak_mib) / examples, 0.0) if examples else 0.0
    return Work(
        batch_size=whole.batch_size,
        dtype=cost.dtype,
        product_gflop=times * cost.product_gflop,
        other_gflop=times * max(cost.gflop_per_step - cost.product_gflop, 0.0),
        gib=times * cost.gib_per_step,
        fixed_mib=whole.peak_mib - each * whole.batch_size,
        by_example_mib=each,
        note="; ".join(filter(None, (cost.note, scaled))),
    )


def _memory(ready: Prepared) -> tuple[TrainingMemory, TrainingMemory]:
    from tfopt.memory_estimate.estimate import training_memory

    batch = _batch(ready)
    size = ready.facts.batch_size
    whole = training_memory(ready.model, batch, size)
    return whole, training_memory(ready.model, batch, max(whole.batch_size // 2, 1))


def _batch(ready: Prepared) -> tuple[Any, ...]:
    import keras

    from tfopt.data.sources import Arrays, read_source

    source = read_source(ready.train_input)
    if isinstance(source, Arrays):
        batch = keras.tree.map_structure(lambda leaf: leaf[:2], source.structure)
    else:
        batch = source.first
    return batch if isinstance(batch, tuple) else (batch,)


def _require_one_device(ready: Prepared) -> None:
    if ready.facts.replicas > 1:
        raise UserError(
            "The estimate is for one GPU.",
            expected="a job without Distribute, with one replica's part of the batch",
            received=f"{ready.facts.replicas} replicas",
            fix="take Distribute out; the exchange between GPUs is not estimated",
        )
