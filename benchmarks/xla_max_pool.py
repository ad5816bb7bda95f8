"""How slow XLA's gradient of max pooling is on this CPU, and what the mend brings.

``python benchmarks/xla_max_pool.py`` times a training step of a small convolutional net on a
resident batch: without XLA, with XLA, and with XLA and the mend, interleaved in one process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import keras
import tensorflow as tf

from paired import paired_ratio, save_result
from tfopt.recipes.cnn_mnist import plain_cnn
from tfopt.train.xla_cpu_max_pool import tiled_max_pool

BATCH, ROUNDS, STEPS = 80, 15, 10


def step(jit: bool, mended: bool) -> Callable[[], float]:
    """A traced step; the mend has its effect while tracing."""
    model = plain_cnn()
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy()
    x = tf.random.normal((BATCH, 28, 28, 1))
    y = tf.random.uniform((BATCH,), 0, 10, tf.int64)

    @tf.function(jit_compile=jit)
    def train() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        optimizer.apply(tape.gradient(value, model.trainable_variables))
        return value

    with tiled_max_pool() if mended else nullcontext():
        train()

    def timed() -> float:
        begun = time.perf_counter()
        for _ in range(STEPS):
            train().numpy()
        return (time.perf_counter() - begun) * 1000 / STEPS

    return timed


def main() -> None:
    variants = {
        "no XLA": step(jit=False, mended=False),
        "XLA": step(jit=True, mended=False),
        "XLA, mended": step(jit=True, mended=True),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, timed in variants.items():
            times[name].append(timed())
    for name, values in times.items():
        print(f"{name}: {statistics.median(values):.2f} ms a step")
    save_result(
        "xla_max_pool",
        "python benchmarks/xla_max_pool.py",
        [
            paired_ratio("step time, XLA / no XLA", times["XLA"], times["no XLA"]),
            paired_ratio("step time, XLA mended / XLA", times["XLA, mended"], times["XLA"]),
            paired_ratio("step time, XLA mended / no XLA", times["XLA, mended"], times["no XLA"]),
        ],
        step_ms=times,
    )


if __name__ == "__main__":
    main()
