"""Which worker the others wait for, and which device is slower: judged from what was measured.

Guarantees: nothing is named that the spread of the measurements, or a tenth of a step, could
explain. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low

# Below it a difference is not worth a name.
_LEAST_SHARE = 0.1
_STANDARD_ERRORS = 3.0
# With fewer steps their spread is not known.
_LEAST_STEPS = 5


@dataclass(frozen=True)
class WorkerTimes:
    """One worker's epoch, without its first step: means over a step, in milliseconds."""

    rank: int
    steps: int
    step_ms: float
    """From the end of one step to that of the next; the same on all workers, who wait for it."""
    input_wait_ms: float
    """In the fetch from this worker's own input pipeline."""
    host_ms: float
    """Between the steps: callbacks and Keras's own loop."""
    error_ms: float
    """The standard error of the sum of the last two."""

    @property
    def own_ms(self) -> float:
        """What this worker spends before the others' exchange can begin, without computing."""
        return self.input_wait_ms + self.host_ms


@dataclass(frozen=True)
class Straggler:
    """A worker that the others wait for."""

    rank: int
    cause: str
    """"input wait" or "host time": the larger part of what it has more."""
    excess_ms: float
    """What it spends more on each step than the median of the others."""
    factor: float
    """How many times as long a step takes as it would without that."""

    def __str__(self) -> str:
        return (
            f"worker {self.rank} holds up the others by its {self.cause}: {self.excess_ms:.1f} ms "
            f"more on each step than the median of the others; a step takes {self.factor:.2f} "
            "times as long as without"
        )


def stragglers(workers: Sequence[WorkerTimes]) -> tuple[Straggler, ...]:
    """Those that are slower than the median of the others by more than the noise."""
    found = []
    for each in workers:
        others = [other for other in workers if other is not each]
        if not others or min(worker.steps for worker in workers) < _LEAST_STEPS:
            continue
        # The lower one, so that two slow workers of three do not hide each other.
        usual = median_low(other.own_ms for other in others)
        noise = (each.error_ms**2 + median(other.error_ms for other in others) ** 2) ** 0.5
        excess = each.own_ms - usual
        if excess <= max(_STANDARD_ERRORS * noise, _LEAST_SHARE * each.step_ms):
            continue
        input_excess = each.input_wait_ms - median_low(other.input_wait_ms for other in others)
        cause = "input wait" if input_excess >= excess / 2 else "host time"
        without = max(each.step_ms - excess, each.step_ms / 100)
        found.append(Straggler(each.rank, cause, excess, each.step_ms / without))
    return tuple(found)


@dataclass(frozen=True)
class DeviceTimes:
    """How long one product of matrices took on a device, each time."""

    rank: int
    device: str
    """Such as GPU:0 of that worker."""
    model: str
    product_ms: tuple[float, ...]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.device} of worker {self.rank} ({self.model})"


def imbalance(devices: Sequence[DeviceTimes]) -> str | None:
    """What to say where GPUs are of different speed or model; None where they are alike.

    Of CPU devices nothing is said: logical ones share the same cores.
    """
    gpus = [each for each in devices if each.device.startswith("GPU")]
    if len(gpus) < 2:
        return None
    fastest = min(gpus, key=lambda gpu: median(gpu.product_ms))
    slowest = max(gpus, key=lambda gpu: median(gpu.product_ms))
    usual = median(fastest.product_ms)
    factor = median(slowest.product_ms) / usual
    models = sorted({gpu.model for gpu in gpus})
    if len(models) == 1 and min(slowest.product_ms) <= (1 + _LEAST_SHARE) * usual:
        return None
    kinds = f"of different models ({', '.join(models)})" if len(models) > 1 else "of unequal speed"
    return (
        f"The GPUs are {kinds}: a product of matrices takes {slowest.name} {factor:.2f} times as "
        f"long as {fastest.name}. Every step takes as long as on the slowest, since each replica "
        "gets as many examples."
    )
