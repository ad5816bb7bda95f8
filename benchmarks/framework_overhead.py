"""What tfopt itself costs: the same settings through ``tfopt.run`` and by hand in plain Keras.

``python benchmarks/framework_overhead.py`` trains both, alternating, in one process, and
compares the median step times pair by pair. The bar is 1.02.
"""

from __future__ import annotations

import argparse
import statistics

import keras
import numpy as np
import tensorflow as tf

from paired import paired_ratio, save_result
from tfopt import Data, Execution, Job, LearningRate, Pipeline, chain
from tfopt.bench.clock import StepClock
from tfopt.data.mnist import load_mnist
from tfopt.recipes.cnn_mnist import plain_cnn, plain_compile
from tfopt.runner import prepared

BATCH, EPOCHS, PER_EXECUTION, PEAK = 80, 3, 5, 0.01


def by_hand(x: np.ndarray, y: np.ndarray, seed: int) -> StepClock:
    """What someone would write who knows what tfopt knows."""
    keras.utils.set_random_seed(seed)
    count = len(x)
    steps = -(-count // BATCH)
    model = plain_cnn()
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0,
        steps * EPOCHS - steps * EPOCHS // 10,
        warmup_target=PEAK,
        warmup_steps=steps * EPOCHS // 10,
    )
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
            lambda i: (tf.gather(images, i), tf.gather(labels, i)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
        .prefetch(tf.data.AUTOTUNE)
    )
    clock = quiet_clock(steps)
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[clock])
    return clock


def through_tfopt(x: np.ndarray, y: np.ndarray, seed: int) -> StepClock:
    job = Job(
        build=plain_cnn,
        data=lambda: Data(train=(x, y)),
        compile=plain_compile,
        batch_size=32,
        epochs=EPOCHS,
        seed=seed,
    )
    transforms = chain(
        LearningRate(peak=PEAK, warmup=0.1, decay="cosine"),
        Pipeline(batch_size=BATCH),
        Execution(steps_per_execution=PER_EXECUTION),
    )
    with prepared(transforms.apply(job)) as ready:
        clock = quiet_clock(ready.facts.steps_per_epoch)
        ready.fit(callbacks=[clock])
    return clock


def quiet_clock(steps: int | None) -> StepClock:
    return StepClock(steps, evaluate=lambda: None, progress=lambda epoch, step: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12)
    options = parser.parse_args()
    x, y = load_mnist("embedded").train
    times: dict[str, list[float]] = {"hand": [], "tfopt": []}
    totals: dict[str, list[float]] = {"hand": [], "tfopt": []}
    for pair in range(options.pairs):
        order = [("hand", by_hand), ("tfopt", through_tfopt)]
        for name, train in order if pair % 2 else reversed(order):
            clock = train(x, y, pair)
            times[name].append(statistics.median(clock.windows_ms))
            totals[name].append(clock.epochs[-1].train_s)
        print(f"pair {pair + 1}/{options.pairs}: {times['tfopt'][-1] / times['hand'][-1]:.3f}")
    save_result(
        "framework_overhead",
        f"python benchmarks/framework_overhead.py --pairs {options.pairs}",
        [
            paired_ratio("step time, tfopt / by hand", times["tfopt"], times["hand"]),
            paired_ratio("training time, tfopt / by hand", totals["tfopt"], totals["hand"]),
        ],
        step_ms=times,
        train_s=totals,
    )


if __name__ == "__main__":
    main()
