"""Measure what each worker does in a training, and name the one that the others wait for.

Nothing is named that the spread of the measurements, or a tenth of a step, could explain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any

from tfopt.compress.hooks import replaced

# Below it a difference is not worth a name.
_LEAST_SHARE = 0.1
_STANDARD_ERRORS = 3.0
# With fewer steps their spread is not known.
_LEAST_STEPS = 5
_ROUNDS = 5  # products of matrices on each device
# Long enough to be more than the call itself, by far.
_SIZE = {"GPU": 4096, "CPU": 256}


class _Counted:
    """The input wait of this process; what was compiled to count it may be called any time later.

    All workers' steps take the same time, since they end in an exchange, and so does what Keras's
    loop sees of the input. So operations inside the compiled step read the clock around the fetch
    from the worker's own pipeline, which comes before the exchange.
    """

    seconds: Any = None
    replacing = ExitStack()
    on = False
    within = False
    """Whether a fetch of several replicas runs: the fetches for each are not counted again."""


def count_input_wait(on: bool) -> None:
    """Count the input wait in steps that are compiled from now on, or no longer."""
    if on and not _Counted.on:
        _replace_fetches(_Counted.replacing)
    elif not on:
        _Counted.replacing.close()
    _Counted.on = on


def seconds_waited() -> float:
    """Return the input wait of all steps that were compiled to count it."""
    return 0.0 if _Counted.seconds is None else float(_Counted.seconds.numpy())


def _replace_fetches(undo: ExitStack) -> None:
    import tensorflow as tf
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator
    from tensorflow.python.distribute import input_lib
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    if _Counted.seconds is None:
        # tf.Variable would, in a strategy's scope, be one for each replica of each worker.
        with tf.init_scope(), tf.device("CPU:0"):
            _Counted.seconds = ResourceVariable(0.0, trainable=False, dtype=tf.float64)
    of_several = input_lib._SingleWorkerDatasetIteratorBase
    for kind, names in (
        (of_several, ("get_next_as_list", "get_next_as_optional_list")),
        (OwnedIterator, ("get_next", "get_next_as_optional")),
    ):
        undo.enter_context(replaced(kind, **{name: _timed(getattr(kind, name)) for name in names}))


def _timed(plain: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _Counted.within:
            return plain(self, *args, **kwargs)
        with tf.device("CPU:0"):
            begun = tf.timestamp()
        _Counted.within = True
        try:
            with tf.control_dependencies([begun]):
                data = plain(self, *args, **kwargs)
        finally:
            _Counted.within = False
        there = tf.nest.flatten(data, expand_composites=True)
        with tf.control_dependencies(there), tf.device("CPU:0"):
            _Counted.seconds.assign_add(tf.timestamp() - begun)
        return data

    return timed


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
        """Return what this worker spends before the exchange can begin, without computing."""
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
    """Return the workers that are slower than the median of the others by more than the noise."""
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
        """Return such as ``GPU:0 of worker 1 (NVIDIA H100)``."""
        return f"{self.device} of worker {self.rank} ({self.model})"


def imbalance(devices: Sequence[DeviceTimes]) -> str | None:
    """Return a warning where GPUs are of different speed or model; None where they are alike.

    CPU devices are not compared: logical ones share the same cores.
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


def device_times(devices: Sequence[str], rank: int) -> list[DeviceTimes]:
    """Time products of matrices on the devices of this process, named as by a strategy.

    They take turns, so that a slow moment of the machine falls on all.
    """
    multiply = [_product(device) for device in devices]
    for each in multiply:
        each()  # compiles, and wakes a device that saves power

    def timed(call: Callable[[], float]) -> float:
        begun = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - begun)

    rounds = [[timed(each) for each in multiply] for _ in range(_ROUNDS)]
    names = [device.split("device:")[-1] for device in devices]
    return [
        DeviceTimes(rank, name, _model(name), times)
        for name, times in zip(names, zip(*rounds, strict=True), strict=True)
    ]


def _product(device: str) -> Callable[[], float]:
    import tensorflow as tf

    size = next(size for kind, size in _SIZE.items() if kind in device)
    with tf.device(device):
        matrix = tf.fill((size, size), 1.0 / size)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def multiplied(matrix: Any) -> Any:
        with tf.device(device):
            return tf.reduce_sum(tf.matmul(tf.matmul(matrix, matrix), matrix))

    # A number of Python is there only when the device is done.
    return lambda: float(multiplied(matrix).numpy())


def _model(name: str) -> str:
    import tensorflow as tf

    kind, _, index = name.partition(":")
    if kind != "GPU":
        return kind
    there = tf.config.get_visible_devices("GPU")
    logical = tf.config.list_logical_devices("GPU")
    # Several logical devices on one GPU are of its model.
    at = int(index) * len(there) // len(logical)
    return str(tf.config.experimental.get_device_details(there[at]).get("device_name", kind))
