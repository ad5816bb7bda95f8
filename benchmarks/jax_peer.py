"""A net of ``nets.py`` on Keras's JAX backend, by ``fit``; KERAS_BACKEND is jax."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import jax
import keras

from benchmarks import nets
from benchmarks.peer_process import BATCHES, turns


def train(
    pipe: Connection, net: str, sizes: dict[str, Any], batch_size: int, on: str, **_: Any
) -> None:
    """Train a net until the parent ends this process."""
    device = jax.local_devices()[0]
    if on == "gpu" and device.platform != "gpu":
        pipe.send(("refused", "JAX sees no GPU"))
        return
    begun = time.perf_counter()
    precision = "float32" if on == "cpu" else "mixed_bfloat16"
    keras.config.set_dtype_policy(precision)
    model = nets.build(net, sizes)
    model.compile(nets.OPTIMIZERS[net], "sparse_categorical_crossentropy")
    model.make_train_function()
    what = f"Keras {keras.__version__} on JAX {jax.__version__}, {precision}"
    parameters = sum(int(keras.ops.size(each)) for each in model.trainable_variables)
    facts = {"what": what, "parameters": parameters}
    x, y = nets.examples(net, sizes, BATCHES * batch_size)
    build_s = time.perf_counter() - begun
    clock = turns(pipe, facts, build_s, jax.block_until_ready, lambda: _peak_mib(device))
    step = model.train_function

    def timed_step(state: Any, batch: Any) -> Any:
        logs, state = step(state, batch)
        clock.send(logs)
        return logs, state

    def batches() -> Iterator[tuple[Any, Any]]:
        while True:
            for first in range(0, len(x), batch_size):
                yield x[first : first + batch_size], y[first : first + batch_size]

    # Not by a callback after each batch, for which Keras would wait for the device every time.
    model.train_function = timed_step
    begins = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: next(clock))
    model.fit(batches(), steps_per_epoch=1 << 40, callbacks=[begins], verbose=0)


def _peak_mib(device: Any) -> float | None:
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    return None if peak is None else peak / 2**20
