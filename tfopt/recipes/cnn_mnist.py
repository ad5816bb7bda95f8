"""Train the plain MNIST network that tutorials copy, and make it fast and small by a chain.

Run it with ``python -m tfopt.recipes.cnn_mnist``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tfopt import (
    Distribute,
    Execution,
    Job,
    LearningRate,
    MixedPrecision,
    Pipeline,
    Place,
    Prune,
    Quantize,
    chain,
)
from tfopt.data.mnist import Source, load_mnist
from tfopt.recipes.plain_job import plain_job, run_recipe

if TYPE_CHECKING:
    import keras

# Taken without a search: by --budget 0, --transforms or --skip.
CHAIN = chain(
    Place(),
    MixedPrecision(),
    Distribute(),
    LearningRate(peak=0.01, warmup=0.1, decay="cosine"),
    # 50 divides 10,000 and 60,000: a smaller last batch would be compiled a second time.
    Pipeline(batch_size=50, cache="memory"),
    Execution(jit_compile=True, steps_per_execution=25),
    Prune(sparsity=0.5),
    Quantize(precision="int8"),
)


def job(
    *,
    data: Source = "auto",
    batch_size: int = 32,
    epochs: int = 3,
    steps: int | None = None,
    seed: int = 0,
) -> Job:
    """Return the plain job: Adam at its default rate, batches of 32."""
    load = functools.partial(load_mnist, data)
    return plain_job("cnn_mnist", plain_cnn, load, batch_size, epochs, steps, seed)


def plain_cnn() -> keras.Model:
    """Return one convolution, one pooling, one dense layer."""
    import keras

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ],
        name="cnn_mnist",
    )


if __name__ == "__main__":
    run_recipe("cnn_mnist", CHAIN)
