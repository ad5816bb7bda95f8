"""What tfopt itself costs: the same settings through a Job and by hand in plain Keras.

``python benchmarks/framework_overhead.py`` prepares both, then lets them train one epoch each in
turn, many times, and compares the median step times pair by pair. The bar is 1.02.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from paired import ends_of_executions, paired_ratio, save_result
from tfopt import Data, Execution, Job, LearningRate, Pipeline, chain
from tfopt.data.mnist import load_mnist
from tfopt.recipes.cnn_mnist import plain_cnn, plain_compile
from tfopt.run import prepared

BATCH, PER_EXECUTION, PEAK, EPOCHS = 80, 5, 0.01, 100
Epoch = Callable[[], float]


def by_hand(x: np.ndarray, y: np.ndarray, seed: int) -> Epoch:
    """What someone would write who knows what tfopt knows."""
    keras.utils.set_random_seed(seed)
    count = len(x)
    steps = -(-count // BATCH)
    rising = steps * EPOCHS // 10
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps * EPOCHS - rising, warmup_target=PEAK, warmup_steps=rising
    )
    model = plain_cnn()
    model.compile(
        keras.optimizers.Adam(schedule),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=PER_EXECUTION,
    )
    images, labels = tf.constant(x), tf.constant(y)
    data = (
        tf.data.Dataset.range(count)
        .shuffle(count, seed=seed)
        .batch(BATCH)
        .map(
            lambda rows: (tf.gather(images, rows), tf.gather(labels, rows)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        .prefetch(tf.data.AUTOTUNE)
    )
    return epoch_of(model, data)


def epoch_of(model: Any, data: Any) -> Epoch:
    def train() -> float:
        """Train an epoch; return the median milliseconds of a step."""
        callback, ends = ends_of_executions()
        model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[callback])
        return 1000 * statistics.median(b - a for a, b in pairwise(ends)) / PER_EXECUTION

    return train


def described(x: np.ndarray, y: np.ndarray, seed: int) -> Job:
    """The same through tfopt."""
    job = Job(
        build=plain_cnn,
        data=lambda: Data(train=(x, y)),
        compile=plain_compile,
        batch_size=32,
        epochs=EPOCHS,
        seed=seed,
    )
    return chain(
        LearningRate(peak=PEAK, warmup=0.1, decay="cosine"),
        Pipeline(batch_size=BATCH),
        Execution(steps_per_execution=PER_EXECUTION),
    ).apply(job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="fresh models of both kinds")
    parser.add_argument("--pairs", type=int, default=30, help="pairs of epochs in each round")
    options = parser.parse_args()
    x, y = load_mnist("embedded").train
    times: dict[str, list[float]] = {"hand": [], "tfopt": []}
    for seed in range(options.rounds):
        hand = by_hand(x, y, seed)
        with prepared(described(x, y, seed)) as ready:
            through_tfopt = epoch_of(ready.model, ready.train_input)
            both = [("hand", hand), ("tfopt", through_tfopt)]
            for _, train in both:
                train()  # traces
            for pair in range(options.pairs):
                for name, train in both if pair % 2 else reversed(both):
                    times[name].append(train())
    save_result(
        "framework_overhead",
        f"python benchmarks/framework_overhead.py --rounds {options.rounds} "
        f"--pairs {options.pairs}",
        [paired_ratio("step time, tfopt / by hand", times["tfopt"], times["hand"])],
        step_ms=times,
    )


if __name__ == "__main__":
    main()
