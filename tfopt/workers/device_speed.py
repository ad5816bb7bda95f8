"""How fast each device of this process multiplies matrices: a fraction of a second in all.

Guarantees: the devices are measured in turns, so that a slow moment of the machine falls on all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tfopt.workers.balance import DeviceTimes

_ROUNDS = 5
# Long enough to be more than the call itself, by far.
_SIZE = {"GPU": 4096, "CPU": 256}


def device_times(devices: Sequence[str], rank: int) -> list[DeviceTimes]:
    """Of the devices of this process, by the names that a strategy gives them."""
    multiply = [_product(device) for device in devices]
    for each in multiply:
        each()  # compiles, and wakes a device that saves power
    taken: list[list[float]] = [[] for _ in devices]
    for _ in range(_ROUNDS):
        for each, times in zip(multiply, taken, strict=True):
            begun = time.perf_counter()
            each()
            times.append(1000 * (time.perf_counter() - begun))
    names = [device.split("device:")[-1] for device in devices]
    return [
        DeviceTimes(rank, name, _model(name), tuple(times))
        for name, times in zip(names, taken, strict=True)
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
