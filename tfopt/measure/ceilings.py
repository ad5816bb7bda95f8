"""Measure the fastest product of this machine, by TensorFlow's own.

Nothing else may run meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tfopt.errors import UserError
from tfopt.job.cluster_place import usable_cores
from tfopt.measure.machine import cpu_model
from tfopt.report.bench_report import Ceilings

DTYPES = ("float32", "float16", "bfloat16", "float64")

_SMALLEST, _LARGEST_CPU, _LARGEST_GPU = 256, 4096, 16384
_LONG_ENOUGH_S = 0.05
_ROUND_S = 0.2
_ROUNDS = 5
_TRIES = 3  # other work may hold one of them down


def ceilings(dtype: str, device: str = "CPU:0") -> Ceilings:
    """Measure the ceiling of a device in a dtype: the best of three.

    Args:
        dtype: One of ``DTYPES``.
        device: A logical device, "CPU:0" or "GPU:0".

    Raises:
        UserError: Where the device is not there, or multiplies nothing in this dtype.
    """
    import tensorflow as tf

    here = {each.name.partition("device:")[2] for each in tf.config.list_logical_devices()}
    if dtype not in DTYPES or device not in here:
        raise UserError(
            "There is no such ceiling.",
            expected=f"{' or '.join(DTYPES)}, on {' or '.join(sorted(here))}",
            received=f"{dtype!r} on {device}",
        )
    try:
        gflops = round(max(_product_gflops(dtype, device) for _ in range(_TRIES)), 3)
    except (tf.errors.OpError, MemoryError) as error:
        what = f"{device} multiplies no matrices in {dtype}: {type(error).__name__}"
        raise UserError(what) from error
    return Ceilings(_name(dtype, device), dtype, gflops)


def _name(dtype: str, device: str) -> str:
    """Return the device's name, with what changes its ceiling."""
    import tensorflow as tf

    if device.startswith("GPU"):
        physical = tf.config.get_visible_devices("GPU")[int(device.partition(":")[2])]
        details = tf.config.experimental.get_device_details(physical)
        name = str(details.get("device_name", "unnamed GPU"))
        if dtype == "float32" and details.get("compute_capability", (0,))[0] >= 8:
            tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
            name += f", {'in' if tf32 else 'not in'} TF32"
        return name
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return f"{cpu_model()}, {usable_cores()} cores" + (f", {threads} threads" if threads else "")


def _product_gflops(dtype: str, device: str) -> float:
    """Measure the best product of two square matrices, grown until one takes long enough."""
    import tensorflow as tf

    size = _SMALLEST
    largest = _LARGEST_GPU if device.startswith("GPU") else _LARGEST_CPU
    best = 0.0
    with tf.device(device):
        while True:
            try:
                took = _best_s(_product(size, dtype))
            except tf.errors.ResourceExhaustedError:
                if not best:
                    raise
                return best
            best = max(best, 2.0 * size**3 / took / 1e9)
            if took > _LONG_ENOUGH_S or size >= largest:
                return best
            size *= 2


def _product(size: int, dtype: str) -> Callable[[], Any]:
    import tensorflow as tf

    # A GPU under its power limit is faster at numbers that are easy: these are like a network's.
    matrix = tf.cast(tf.random.stateless_normal((size, size), seed=(0, 0)), dtype)
    return lambda: tf.linalg.matmul(matrix, matrix)


def _best_s(operation: Callable[[], Any]) -> float:
    """Return the seconds of one call: the best of some rounds, each waiting for the device."""
    _timed(operation, 1)
    once = _timed(operation, 1)
    calls = max(1, min(1000, int(_ROUND_S / max(once, 1e-9))))
    # One that is slow by itself is not asked as often.
    rounds = max(1, min(_ROUNDS, int(_ROUNDS * _ROUND_S / max(once, 1e-9))))
    return min(once, *(_timed(operation, calls) / calls for _ in range(rounds)))


def _timed(operation: Callable[[], Any], calls: int) -> float:
    import tensorflow as tf

    begun = time.perf_counter()
    for _ in range(calls):
        operation()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - begun
